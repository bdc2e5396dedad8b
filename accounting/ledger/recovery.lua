
-- Recovery --------------------------------------------------------------------------------------------------
-- Receipts that a store lost are put back by `apply` (see `charge.lua`).

-- KEYS  the lineage's account, and the key to write.
-- ARGV  the key's kind (hash, set or stream), how many words an entry of it has, and the words: fields with their
--       values, members, or entries of a stream with their ids
-- Writes a part of a lineage of which there is no account as a backup has it. Without an account every other call finds
-- the lineage lost, so that nothing is charged before the last part, which is the account. To write a part once more is
-- harmless.
local function restore(keys, args, asker)
  local kind, width, words = args[1], amount(args[2]), rest(args, 3)
  if redis.call('EXISTS', keys[1]) == 1 then
    return {'exists'}
  elseif width == 0 or #words % width ~= 0 then
    malformed('a part of a backup must come whole')
  elseif kind == 'stream' then
    local last = redis.call('XREVRANGE', keys[2], '+', '-', 'COUNT', 1)[1]
    local newest = last and tonumber(string.match(last[1], '^%d+')) or 0
    for at = 1, #words, width do
      if tonumber(string.match(words[at], '^%d+')) > newest then
        redis.call('XADD', keys[2], unpack(words, at, at + width - 1))
      end
    end
  else
    in_slices(kind == 'hash' and 'HSET' or 'SADD', keys[2], words, width)
  end
  if redis.call('EXISTS', keys[1]) == 1 then
    note_beginning(asker.services)
  end
  return {'done'}
end

-- KEYS  the lineage's account, its acts, its services
-- ARGV  what `read_act` reads; then each service's id and its writes
-- Lets the services on again.
local function reconcile(keys, args)
  local act = read_act(args)
  if not read_account(keys[1], 'the lineage') then
    return {'unknown'}
  elseif is_stale(keys[1], act) then
    return {'stale'}
  end
  local known = {}
  for at = 7, #args, 2 do
    local asker = read_asker(keys[3], args[at], '0')
    known[#known + 1] = {args[at], asker, math.max(asker.writes, amount(args[at + 1]))}
  end
  write_act(keys[1], keys[2], act)
  for _, service in ipairs(known) do
    local number = read_asker(keys[3], service[1], '0').number -- again, for the one before may have been new
    redis.call('HSET', keys[3], service[1], number .. ' ' .. text(service[3]))
  end
  return {'done'}
end

register_on_lineage('restore', {}, restore)
register_on_lineage('reconcile', EVEN_WHEN_FULL, reconcile)
