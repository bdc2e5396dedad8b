#!lua name=dpserve

-- The ledger's arithmetic, run inside the store, where nothing can come between the check and the charge.
--
-- Promises
--   * A request is charged whole to both of its accounts, or refused and nothing at all is written.
--   * A charge never takes an account's `spent` past its `limit`: spent + total <= limit is checked before it.
--   * A row is charged once. The first answer stored for it is its only answer.
--   * Every check of a request comes before its first write, and its first writes are the charges, so an
--     error inside the store can at worst leave a charge without an answer, never an answer without a charge.
--   * The time a charge takes does not depend on how many receipts or rows were written before it.
--   * A service that has seen this lineage newer than it is now gets no decision (see `register`).
--
-- Amounts are whole numbers of picorho of at most 2^53 - 1. Lua's numbers are IEEE doubles, which hold these
-- exactly; a sum or product beyond 2^53 may be rounded, but rounding is monotone and every limit is below
-- 2^53, so what is over the limit stays over it.
--
-- The library is this file, `sha256.lua`, `receipts.lua`, `charges.lua`, `accounts.lua`, `recovery.lua`
-- and `holdings.lua`, in this order, loaded as one.

local VERSION = '4'
local LARGEST = 9007199254740991
local SLICE = 1000 -- Lua's stack holds about 8000 arguments

local function amount(text)
  local value = tonumber(text)
  if not value or value < 0 or value > LARGEST or value ~= math.floor(value) then
    error('an amount must be a whole number from 0 to 2^53 - 1')
  end
  return value
end

local function text(value)
  return string.format('%.0f', value)
end

-- Every function takes as its first key the lineage's `services`, and as its first arguments the library's
-- version, a nonce, and who is asking: a service's id (empty for the owner's commands) and how many of its
-- writes the store has acknowledged to it. Its reply opens with the nonce, so that a reply can only be taken
-- for its own call, and with the number of the service's writes that the store now has.
--
-- A caller written for another version is refused. So is a service of whose acknowledged writes the store has
-- fewer: it lost some of them (a restored backup, a promoted replica, an emptied volume), and to decide
-- anything from what is left could spend twice what was spent before.

local function register(name, flags, run)
  redis.register_function{
    function_name = 'dpserve_' .. name,
    flags = flags,
    callback = function(keys, args)
      if args[1] ~= VERSION then
        return redis.error_reply('DPSERVEVERSION ' .. VERSION)
      end
      local service, writes = args[3], 0
      if service ~= '' then
        writes = amount(redis.call('HGET', keys[1], service) or '0')
        if writes < amount(args[4]) then
          return redis.error_reply('DPSERVEBEHIND ' .. text(writes) .. ' ' .. args[4])
        end
      end
      local reply, wrote = run(keys, args)
      if wrote and service ~= '' then
        writes = redis.call('HINCRBY', keys[1], service, 1)
      end
      table.insert(reply, 1, text(writes))
      table.insert(reply, 1, args[2])
      return reply
    end,
  }
end
