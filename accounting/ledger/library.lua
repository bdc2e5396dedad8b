#!lua name=@NAME@

-- The ledger's arithmetic, run inside the store, where nothing can come between the check and the charge.
--
-- Promises
--   * A request is charged whole to all of its accounts (the client's, its group's if it has one, and each block's that
--     its lines name), or refused, and then nothing at all is written.
--   * A charge never takes an account's `spent` past its `limit`, which is checked before it.
--   * Each account pays once for a question: a client's, a group's whichever of its members asks, a block's whoever asks.
--   * Every key that a call will write is looked at, and every number in it read, before its first write, and so is the
--     right to write it. Receipts are written first, what they cost next, and that their questions were paid for last:
--     an error inside the store can leave a question that costs again, never one that is answered unpaid. A lineage
--     whose receipts are more than it counts takes no further charge.
--   * The time a charge takes does not depend on how much was charged before it.
--   * A service that has seen the lineage newer than it is now gets no decision, nor does one that has not looked at
--     the store since it started, or since the lineage began (see `answer`).
--
-- Amounts are whole numbers of 1e-12 of rho, or of pure epsilon where an account counts that, of at most 2^53 - 1.
-- Lua's numbers are IEEE doubles, which hold these exactly; a sum or product beyond 2^53 may be rounded, but rounding is
-- monotone and every limit is below 2^53, so what is over the limit stays over it.
--
-- The library is this file, `owner.lua`, `call.lua`, `charge.lua` and `recovery.lua`, loaded as one. Its name and its
-- functions' names follow from its source, so that services of two releases run side by side. A lineage is written in
-- one format; one in any other is refused here. A word stands in its place where the owner had the lineage forgotten.

local NAME = '@NAME@' -- which whoever loads the library puts here: it follows from the source
local FORMAT, FORGOTTEN = '1', 'forgotten'
local LARGEST = 9007199254740991
local SLICE = 1000 -- Lua's stack holds about 8000 arguments

-- Three kinds of failure are told apart: what a caller sent cannot be read; what lies in the store cannot be, or is not
-- what the other keys say; and the store refuses to do something.
local function malformed(what)
  error({word = 'malformed', line = what}, 0)
end

local function damaged(what)
  error({word = 'damaged', line = what}, 0)
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

local function word(value)
  return type(value) == 'string' and value or malformed('an argument must be a text')
end

local function stored(text, what)
  return whole(text) or damaged(what .. ' holds no whole number from 0 to 2^53 - 1')
end

local function text(value)
  return string.format(value <= LARGEST and '%d' or '%.0f', value)
end

-- Keys in order, without the services, and by their own names, as `account` or `client:ann:receipts`: no call can hand a
-- function one key for another.
local function named(keys)
  local prefix = string.match(keys[1] or '', '^dpserve:{[^}]*}:') or malformed('a call names a lineage')
  local found = {}
  for position = 2, #keys do
    local key = keys[position]
    if string.sub(key, 1, #prefix) ~= prefix then
      malformed('a call is about one lineage')
    end
    found[position - 1], found[string.sub(key, #prefix + 1)] = key, key
  end
  return setmetatable(found, {__index = function(_, name)
    malformed('the call lacks the key ' .. name)
  end})
end

-- Runs a command with arguments that may be too many for one call. `width`: how many of them belong together.
local function in_slices(command, key, arguments, width)
  for first = 1, #arguments, SLICE * width do
    redis.call(command, key, unpack(arguments, first, math.min(first + SLICE * width - 1, #arguments)))
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

-- Returns true and what `run` returns, or false and a word and a line that say why it failed.
local function attempt(run, ...)
  local ok, first, second = pcall(run, ...)
  if ok then
    return true, first, second
  elseif type(first) == 'table' and first.word then
    return false, first.word, first.line
  end
  -- An error of the store's own arrives as a table with `err` or, from within pcall, as a line.
  local line = type(first) == 'table' and first.err or tostring(first)
  return false, is_refused_by_store(line) and 'failed' or 'damaged', line
end

-- A right that is missing shows before the first write of a call, not between two.
local function check_right(command, key, ...)
  if not redis.acl_check_cmd(command, key, ...) then
    error({word = 'failed', line = 'NOPERM the ledger\'s user may not ' .. command .. ' ' .. key}, 0)
  end
end

-- Who asks: a service, by its id, with its number in the lineage and how many of its writes the store has.
--
-- A service of whose acknowledged writes the store has fewer is refused: the store lost some of them (a restored
-- backup, a promoted replica, an emptied volume), and to decide anything from what is left could spend twice what was
-- spent before.
local function read_asker(services, id, acknowledged)
  if id == '' then
    return {services = services, id = '', number = '0', writes = 0}
  end
  local entry = redis.call('HGET', services, id)
  local number, writes = string.match(entry or '', '^(%d+) (%d+)$')
  if entry and not number then
    damaged('the count of a service\'s writes')
  end
  local asker = {
    services = services, id = id, number = number or text(redis.call('HLEN', services) + 1),
    writes = whole(writes or '0'),
  }
  if asker.writes < acknowledged then
    error({word = 'behind', line = text(asker.writes) .. ' ' .. text(acknowledged)}, 0)
  end
  return asker
end

local function count_write(asker)
  asker.writes = asker.writes + 1
  redis.call('HSET', asker.services, asker.id, asker.number .. ' ' .. text(asker.writes))
end

-- What a caller must have looked at: the store since it started, and the lineage since it began. What stands here is
-- gone when the server ends, and with the library. A lineage may begin in a store that was emptied while it ran, so
-- whoever looked before it began has to look again.
local loaded, beginnings, begun = nil, {}, 0

local function note_beginning(services)
  begun = begun + 1
  beginnings[services] = begun
end

local function mark_of(services)
  if not loaded then
    local now = redis.call('TIME')
    loaded = now[1] .. '.' .. now[2]
  end
  return loaded .. '/' .. (beginnings[services] or 0)
end

-- Every function takes as its first key the lineage's `services`, and as its argument one value, packed by MessagePack,
-- that names all others. Each has a nonce, the mark of what the caller has looked at, and
-- who is asking: a service's id (empty for the owner's commands) and how many of its writes the store has acknowledged
-- to it. The reply opens with the nonce, so that a reply can only be taken for its own call, and with the number of the
-- service's writes that the store now has.
--
-- A caller with another mark has not looked at the settings of this run of the server, nor compared the lineage with
-- what others know of it; it is told the mark, and nothing is decided.
local function answer(run, keys, args)
  local ok, sent = pcall(cmsgpack.unpack, args[1] or '')
  if not ok or type(sent) ~= 'table' then
    malformed('a call must come whole')
  end
  local found = named(keys)
  if sent.mark ~= mark_of(keys[1]) then
    error({word = 'unseen', line = mark_of(keys[1])}, 0)
  end
  local asker = read_asker(keys[1], word(sent.service), amount(sent.acknowledged))
  local reply = run(found, sent, asker)
  table.insert(reply, 1, word(sent.nonce))
  table.insert(reply, 2, text(asker.writes))
  return reply
end

local function register(name, flags, run)
  redis.register_function{
    function_name = NAME .. '_' .. name,
    flags = flags,
    callback = function(keys, args)
      local ok, reply, line = attempt(run, keys, args)
      if ok then
        return reply
      end
      return redis.error_reply('DPSERVE' .. string.upper(reply) .. ' ' .. line)
    end,
  }
end

local function register_on_lineage(name, flags, run)
  register(name, flags, function(keys, args)
    return answer(run, keys, args)
  end)
end

-- ARGV  commands, each with its subcommand if it has one.  Replies which of them the user may not use on a key like the
-- ledger's. Every argument is such a key, so that it does not matter which of them the command takes for keys.
local function denied(_, args)
  local trial, found = 'dpserve:{trial}', {}
  for _, command in ipairs(args) do
    local words = {}
    for part in string.gmatch(command .. string.rep(' ' .. trial, 3), '%S+') do
      words[#words + 1] = part
    end
    if not redis.acl_check_cmd(unpack(words)) then
      found[#found + 1] = command
    end
  end
  return found
end

register('denied', {'no-writes'}, denied)
