-- Requests for `wrk`, none with a row that was sent before: a row that is asked again would be a replay.
-- BENCH_PREFIX and BENCH_SUFFIX surround the rows; BENCH_ROWS is how many there are in one body. A row opens with the
-- bits of a counter; what follows is the same in every row.

local COUNTER_BITS = 40
local rows = tonumber(os.getenv('BENCH_ROWS'))
local features = tonumber(os.getenv('BENCH_FEATURES'))
local nested = os.getenv('BENCH_NESTED') == '1'
local counter = tonumber(os.getenv('BENCH_FIRST_ROW'))

local rest = {}
for place = COUNTER_BITS + 1, features do
  rest[#rest + 1] = string.format('%.4f', (place * 0.6180339887) % 1)
end
rest = table.concat(rest, ',')

local bits = {}
local function row()
  local value = counter
  counter = counter + 1
  for place = 1, COUNTER_BITS do
    bits[place] = value % 2 == 1 and '1' or '0'
    value = math.floor(value / 2)
  end
  return table.concat(bits, ',') .. ',' .. rest
end

wrk.method = 'POST'
wrk.headers['Content-Type'] = 'application/json'
local key = os.getenv('BENCH_KEY')
if key then
  wrk.headers['Authorization'] = 'Bearer ' .. key
end

local prefix, suffix = os.getenv('BENCH_PREFIX'), os.getenv('BENCH_SUFFIX')

function request()
  local written = {}
  for position = 1, rows do
    written[position] = nested and '[' .. row() .. ']' or row()
  end
  return wrk.format(nil, nil, nil, prefix .. table.concat(written, ',') .. suffix)
end

-- Microseconds. `wrong` counts every answer that was not 2xx and every failed read or write.
function done(summary, latency)
  local errors = summary.errors
  print(string.format(
    '{"requests": %d, "seconds": %.6f, "wrong": %d, "p50": %d, "p99": %d, "p999": %d}',
    summary.requests, summary.duration / 1e6, errors.status + errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
