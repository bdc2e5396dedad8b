-- Requests for `wrk`, none with a row that was sent before, or with BENCH_DISTINCT rows in turn, which are replays.
-- BENCH_PREFIX and BENCH_SUFFIX surround the rows; BENCH_ROWS is how many there are in one body; BENCH_NPY sends them
-- as a NumPy file. A row opens with the bits of a counter; what follows is the same in every row.

local COUNTER_BITS = 40
local rows = tonumber(os.getenv('BENCH_ROWS'))
local features = tonumber(os.getenv('BENCH_FEATURES'))
local nested = os.getenv('BENCH_NESTED') == '1'
local npy = os.getenv('BENCH_NPY') == '1'
local counter = tonumber(os.getenv('BENCH_FIRST_ROW'))
local distinct = tonumber(os.getenv('BENCH_DISTINCT'))
local counted = math.min(COUNTER_BITS, features)

local function doubles(values)
  local ffi = require('ffi')
  return ffi.string(ffi.new('double[?]', #values, values), 8 * #values)
end

local rest, digit, separator = {}, {[0] = '0', [1] = '1'}, ','
for place = COUNTER_BITS + 1, features do
  rest[#rest + 1] = string.format('%.4f', (place * 0.6180339887) % 1)
end
if npy then
  for place = 1, #rest do rest[place] = tonumber(rest[place]) end
  rest, digit, separator = doubles(rest), {[0] = doubles({0}), [1] = doubles({1})}, ''
else
  rest = #rest > 0 and ',' .. table.concat(rest, ',') or ''
end

local bits = {}
local function row()
  local value = distinct > 0 and counter % distinct or counter
  counter = counter + 1
  for place = 1, counted do
    bits[place] = digit[value % 2]
    value = math.floor(value / 2)
  end
  return table.concat(bits, separator) .. rest
end

local prefix, suffix = os.getenv('BENCH_PREFIX'), os.getenv('BENCH_SUFFIX')
if npy then
  local said = string.format("{'descr': '<f8', 'fortran_order': False, 'shape': (%d, %d), }", rows, features)
  said = said .. string.rep(' ', -(#said + 11) % 64) .. '\n'
  prefix = '\147NUMPY\1\0' .. string.char(#said % 256, math.floor(#said / 256)) .. said
  suffix, nested = '', false
end

wrk.method = 'POST'
wrk.headers['Content-Type'] = npy and 'application/x-npy' or 'application/json'
if npy then
  wrk.headers['Accept'] = 'application/x-npy'
end
local key = os.getenv('BENCH_KEY')
if key then
  wrk.headers['Authorization'] = 'Bearer ' .. key
end

function request()
  local written = {}
  for position = 1, rows do
    written[position] = nested and '[' .. row() .. ']' or row()
  end
  return wrk.format(nil, nil, nil, prefix .. table.concat(written, npy and '' or ',') .. suffix)
end

-- Microseconds. `wrong` counts every answer that was not 2xx and every failed read or write.
function done(summary, latency)
  local errors = summary.errors
  print(string.format(
    '{"requests": %d, "seconds": %.6f, "wrong": %d, "p50": %d, "p99": %d, "p999": %d}',
    summary.requests, summary.duration / 1e6, errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
