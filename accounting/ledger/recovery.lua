
-- Recovery --------------------------------------------------------------------------------------------------
-- Receipts that a store lost are put back by `apply` (see `charge.lua`).

-- KEYS  the lineage's account, and the keys to write.
-- ARGV  for each key but the account its kind (hash, set or stream), how many words follow, and these: fields and
--       values, members, or for each entry of a stream its id, how many words it has, and these
-- Writes a part of a lineage of which there is no account as a backup has it. Without an account every other call finds
-- the lineage lost, so that nothing is charged before the last part, which is the account. To write a part once more is
-- harmless.
local function restore(keys, args, asker)
  if redis.call('EXISTS', keys[1]) == 1 then
    return {'exists'}
  end
  local at = 1
  local function next_words()
    local count = amount(args[at])
    if at + count > #args then
      malformed('a part of a backup must come whole')
    end
    at = at + 1 + count
    return {unpack(args, at - count, at - 1)}
  end
  for place = 2, #keys do
    local kind = args[at]
    at = at + 1
    if kind == 'hash' then
      in_slices('HSET', keys[place], next_words(), 2)
    elseif kind == 'set' then
      in_slices('SADD', keys[place], next_words(), 1)
    else
      local last = redis.call('XREVRANGE', keys[place], '+', '-', 'COUNT', 1)[1]
      local newest = last and tonumber(string.match(last[1], '^%d+')) or 0
      local entries = amount(args[at])
      at = at + 1
      for _ = 1, entries do
        local id = args[at]
        at = at + 1
        local words = next_words()
        if tonumber(string.match(id, '^%d+')) > newest then
          redis.call('XADD', keys[place], id, unpack(words))
        end
      end
    end
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
