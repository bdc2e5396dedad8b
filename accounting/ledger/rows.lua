
-- Rows ------------------------------------------------------------------------------------------------------
-- A row is '?', the lineage's epoch, ':' and its receipt's number once charged; '=' with that number, ':' and
-- the bytes once answered. Rows and answers travel packed, thousands in one string: row ids as they are, 32
-- bytes each; an answer behind its length, and in replies behind its row's position, as big-endian numbers of
-- 4 bytes.
--
-- Rows are remembered in two generations. When the young one is full the old one is forgotten and the young one
-- becomes old. A forgotten row is as one that was never asked for: it is charged again.
--
-- The epoch moves on when the ledger was found to have lost writes. A row charged in an earlier epoch may have
-- been answered by what was lost, so computing it again would be a second release: it too is charged again.
--
-- Rows of a lineage: the names of its keys `young` and `old`, and its `epoch`. `keep_rows` adds what a call knows:
-- `entries` by row id (false where there is none), whether these are `aged`, in the old generation, how many the young
-- one `held`, and fields `unwritten` of either. A call reads the rows of all its requests together, keeps them as it
-- changes them, and writes them by `write_rows` before it replies.

local ROW_ID_BYTES = 32
local CHARGED, ANSWERED = '?', '='

local function split_row_ids(packed)
  if #packed == ROW_ID_BYTES then
    return {packed}
  elseif #packed == 0 or #packed % ROW_ID_BYTES ~= 0 then
    malformed('row ids must come as whole ids of 32 bytes')
  end
  local ids = {}
  for first = 1, #packed, ROW_ID_BYTES do
    ids[#ids + 1] = string.sub(packed, first, first + ROW_ID_BYTES - 1)
  end
  return ids
end

local function get_rows(key, ids)
  local entries = {}
  for first = 1, #ids, SLICE do
    local last = math.min(first + SLICE - 1, #ids)
    for _, entry in ipairs(redis.call('HMGET', key, unpack(ids, first, last))) do
      entries[#entries + 1] = entry
    end
  end
  return entries
end

local function colon_in(entry)
  return string.find(entry, ':', 1, true) or damaged('a row')
end

local function keep_rows(rows)
  rows.entries, rows.aged, rows.held, rows.unwritten = {}, {}, nil, {young = {}, old = {}}
  return rows
end

-- Reads what the call does not know yet.
local function read_rows(rows, ids)
  local lacking = {}
  for _, id in ipairs(ids) do
    if rows.entries[id] == nil then
      lacking[#lacking + 1] = id
    end
  end
  if #lacking == 0 then
    return
  end
  local young, older = get_rows(rows.young, lacking), {}
  for position, entry in ipairs(young) do
    if not entry then
      older[#older + 1] = lacking[position]
    end
  end
  local old = get_rows(rows.old, older)
  if #older == 0 then
    redis.call('HLEN', rows.old) -- which fails, before anything is known, if it is no hash
  end
  for position, entry in ipairs(young) do
    rows.entries[lacking[position]] = entry
  end
  for position, entry in ipairs(old) do
    rows.entries[older[position]] = entry
    rows.aged[older[position]] = entry and true or nil
  end
end

-- Reads together what the requests of a call name: in every so many arguments from the first, its ids packed. What
-- cannot be read, or names none, is left to fail by itself.
local function foresee_rows(rows, args, first, fields)
  local every_id = {}
  for at = first, #args, fields do
    local packed = args[at]
    if #packed == ROW_ID_BYTES then
      every_id[#every_id + 1] = packed
    else
      local ok, ids = pcall(split_row_ids, packed)
      for _, id in ipairs(ok and ids or {}) do
        every_id[#every_id + 1] = id
      end
    end
  end
  pcall(read_rows, rows, every_id)
end

-- Returns what is known of a row that was read, false where nothing is.
local function find_row(rows, id)
  local entry = rows.entries[id]
  local kind = entry and string.sub(entry, 1, 1)
  if kind == CHARGED then
    return string.sub(entry, 2, colon_in(entry) - 1) == rows.epoch and entry
  elseif kind == ANSWERED then
    colon_in(entry)
  elseif kind then
    damaged('a row')
  end
  return entry
end

-- Sees to it that `entry` stands for the row from now on, in the generation that knows it.
local function put_row(rows, id, entry)
  rows.entries[id] = entry
  local fields = rows.aged[id] and rows.unwritten.old or rows.unwritten.young
  fields[#fields + 1] = id
  fields[#fields + 1] = entry
end

local function write_rows(rows)
  set_fields(rows.young, rows.unwritten.young)
  set_fields(rows.old, rows.unwritten.old)
  rows.unwritten = {young = {}, old = {}}
end

local function lacks_room(generations, fresh, capacity)
  generations.held = generations.held or redis.call('HLEN', generations.young)
  return generations.held > 0 and generations.held + fresh > capacity
end

-- Sees to it that there is room in the young generation for so many fresh ones. Whoever puts them there adds them to
-- what it `held`.
local function make_room(generations, fresh, capacity)
  if lacks_room(generations, fresh, capacity) then
    if generations.unwritten then
      write_rows(generations)
      keep_rows(generations)
    end
    redis.call('UNLINK', generations.old)
    redis.call('RENAME', generations.young, generations.old)
    generations.held = 0
  end
end

local function after_colon(entry)
  return string.sub(entry, colon_in(entry) + 1)
end

local function answer_of(entry)
  if string.sub(entry, 1, 1) == ANSWERED then
    return after_colon(entry)
  end
  return nil
end

local function pack_answer(position, answer)
  return struct.pack('>I4I4', position, #answer) .. answer
end

local function split_answers(packed)
  local answers = {}
  local at = 1
  while at <= #packed do
    if at + 3 > #packed then
      malformed('an answer lacks its length')
    end
    local length, first = struct.unpack('>I4', packed, at)
    if first + length - 1 > #packed then
      malformed('an answer is shorter than its length says')
    end
    answers[#answers + 1] = string.sub(packed, first, first + length - 1)
    at = first + length
  end
  return answers
end
