#!lua name=dpserve_22

-- The ledger's arithmetic, run inside the store, where nothing can come between the check and the charge.
--
-- Promises
--   * A request is charged whole to both of its accounts, or refused and nothing at all is written.
--   * A charge never takes an account's `spent` past its `limit`: spent + total <= limit is checked before it.
--   * A row is charged once. The first answer stored for it is its only answer.
--   * Every key that a request will write is looked at, and every number in it read, before its first write, so
--     that a damaged key cannot leave half a charge. A request that meets one fails alone, with `damaged`.
--   * The receipt of a request is written before its rows are marked, so an error inside the store can at worst leave
--     a charge without an answer, never an answer without a charge. What the requests of a call change together
--     (accounts, tallies, rows) is kept as it changes and written once, before the call replies. What could keep it
--     from being written shows before the first receipt (see `check_receipts`). If it failed all the same, so would
--     all of the call, and the lineage would take no further charge, because its receipts are more than it counts:
--     how many it counts is written last of all, and rows are marked after what they cost (see `write_charges`).
--   * The time a charge takes does not depend on how many receipts or rows were written before it.
--   * A service that has seen this lineage newer than it is now gets no decision (see `register`).
--
-- Amounts are whole numbers of picorho of at most 2^53 - 1. Lua's numbers are IEEE doubles, which hold these
-- exactly; a sum or product beyond 2^53 may be rounded, but rounding is monotone and every limit is below
-- 2^53, so what is over the limit stays over it.
--
-- The library is this file, `sha256.lua`, `receipts.lua`, `rows.lua`, `keys.lua`, `charges.lua`, `accounts.lua`,
-- `recovery.lua` and `holdings.lua`, in this order, loaded as one. Its name and its functions' names carry the
-- version, so that a store runs several side by side: a newer program loads its own and takes nothing away from an
-- older service. What lies in the store has a number of its own, FORMAT: a lineage that a newer library wrote in
-- another format is refused by an older one (see `read_account`). FORMAT counts the formats of published programs: it
-- stays 1 until one is published, and what was written before that by another version need not be readable.

local VERSION = '22'
local FORMAT = 1
local LARGEST = 9007199254740991
local SLICE = 1000 -- Lua's stack holds about 8000 arguments

-- Two kinds of failure are told apart from each other and from the store's own (a key of the wrong type): what a
-- caller sent cannot be read; what lies in the store cannot be, or is not what the other keys say. (A key of the wrong
-- type is damaged too; what else the store refuses to do has failed.)
local function malformed(what)
  error({malformed = what}, 0)
end

local function damaged(what)
  error({damaged = what}, 0)
end

local function whole(text)
  local value = tonumber(text)
  if value and value >= 0 and value <= LARGEST and value == math.floor(value) then
    return value
  end
  return nil
end

local function amount(text)
  return whole(text) or malformed('an amount must be a whole number from 0 to 2^53 - 1')
end

local function stored_amount(text, what)
  return whole(text) or damaged(what .. ' holds no whole number from 0 to 2^53 - 1')
end

-- By '%d' where it can be said so, which takes half the time; a sum or product may be beyond 2^63.
local function text(value)
  return string.format(value <= LARGEST and '%d' or '%.0f', value)
end

local function set_fields(key, fields)
  for first = 1, #fields, 2 * SLICE do
    redis.call('HSET', key, unpack(fields, first, math.min(first + 2 * SLICE - 1, #fields)))
  end
end

-- What an error of the store's own says that is no damage: a right that was not given, a disk or a memory that is full.
local function is_refused_by_store(line)
  for _, word in ipairs({'NOPERM', 'OOM', 'MISCONF', 'READONLY', 'NOREPLICAS'}) do
    if string.find(line, '^-?' .. word) then
      return true
    end
  end
  return string.find(line, 'ACL failure', 1, true) ~= nil
end

-- Returns what became of `run`: true and its results, or false and a word and a line that say why it failed.
local function attempt(run, ...)
  local ok, first, second = pcall(run, ...)
  if ok then
    return true, first, second
  end
  -- An error of the store's own arrives as a table with `err` or, from within pcall, as a line.
  local line = type(first) ~= 'table' and tostring(first) or first.err
  if line then
    return false, is_refused_by_store(line) and 'failed' or 'damaged', line
  elseif first.malformed then
    return false, 'malformed', first.malformed
  elseif first.behind or first.newer then
    return false, first.behind and 'behind' or 'newer', first.behind or first.newer
  end
  return false, 'damaged', first.damaged or 'an unknown error'
end

-- Every function takes as its first key the lineage's `services`, and as its first arguments the library's
-- version, a nonce, and who is asking: a service's id (empty for the owner's commands) and how many of its
-- writes the store has acknowledged to it. Its reply opens with the nonce, so that a reply can only be taken
-- for its own call, and with the number of the service's writes that the store now has.
--
-- A service of whose acknowledged writes the store has fewer is refused: the store lost some of them (a restored
-- backup, a promoted replica, an emptied volume), and to decide anything from what is left could spend twice what
-- was spent before.
--
-- A function that decides on several requests runs each by `attempt` and replies {word, line} for one that failed;
-- what `run` itself raises fails the whole call, with the word in capitals.

local function writes_of(key, service, acknowledged)
  local writes = stored_amount(redis.call('HGET', key, service) or '0', 'the count of a service\'s writes')
  if writes < amount(acknowledged) then
    error({behind = text(writes) .. ' ' .. acknowledged}, 0)
  end
  return writes
end

local function answer(run, keys, args)
  local service, writes = args[3], 0
  if args[1] ~= VERSION or not args[4] then
    malformed('the call is not one for version ' .. VERSION)
  end
  if service ~= '' then
    writes = writes_of(keys[1], service, args[4])
  end
  local reply, wrote = run(keys, args)
  if wrote and service ~= '' then
    writes = writes + 1
    redis.call('HSET', keys[1], service, text(writes))
  end
  table.insert(reply, 1, text(writes))
  table.insert(reply, 1, args[2])
  return reply
end

local function register(name, flags, run)
  redis.register_function{
    function_name = 'dpserve_' .. VERSION .. '_' .. name,
    flags = flags,
    callback = function(keys, args)
      local ok, reply, line = attempt(answer, run, keys, args)
      if ok then
        return reply
      end
      return redis.error_reply('DPSERVE' .. string.upper(reply) .. ' ' .. line)
    end,
  }
end
