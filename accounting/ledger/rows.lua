
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

local ROW_ID_BYTES = 32
local CHARGED, ANSWERED = '?', '='

local function split_row_ids(packed)
  if #packed == 0 or #packed % ROW_ID_BYTES ~= 0 then
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

local function set_rows(key, fields)
  for first = 1, #fields, 2 * SLICE do
    redis.call('HSET', key, unpack(fields, first, math.min(first + 2 * SLICE - 1, #fields)))
  end
end

local function colon_in(entry)
  return string.find(entry, ':', 1, true) or damaged('a row')
end

-- Returns what is known of each id, false where nothing is, and which generation knows it.
local function find_rows(rows, ids)
  local entries, places = get_rows(rows.young, ids), {}
  local old = get_rows(rows.old, ids)
  for position in ipairs(ids) do
    places[position] = rows.young
    if not entries[position] and old[position] then
      entries[position], places[position] = old[position], rows.old
    end
    local entry = entries[position]
    local kind = entry and string.sub(entry, 1, 1)
    if kind == CHARGED then
      entries[position] = string.sub(entry, 2, colon_in(entry) - 1) == rows.epoch and entry
    elseif kind == ANSWERED then
      colon_in(entry)
    elseif kind then
      damaged('a row')
    end
  end
  return entries, places
end

local function make_room(generations, fresh, capacity)
  local held = redis.call('HLEN', generations.young)
  if held > 0 and held + fresh > capacity then
    redis.call('UNLINK', generations.old)
    redis.call('RENAME', generations.young, generations.old)
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
