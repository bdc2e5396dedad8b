
-- Recovery --------------------------------------------------------------------------------------------------
-- Receipts that a store lost are put back by `apply` (see `charge.lua`).

-- KEYS  the key to write, and account
-- ARGV  kind, of the key: hash, set or stream; width, how many words an entry of it has; and words: fields with their
--       values, members, or entries of a stream with their ids
-- Writes a part of a lineage of which there is no account as a backup has it. Without an account every other call finds
-- the lineage lost, so that nothing is charged before the last part, which is the account. To write a part once more is
-- harmless.
local function restore(keys, args, asker)
  local kind, width, words = word(args.kind), amount(args.width), args.words
  if redis.call('EXISTS', keys.account) == 1 then
    return {'exists'}
  elseif type(words) ~= 'table' or width == 0 or #words % width ~= 0 then
    malformed('a part of a backup must come whole')
  elseif kind == 'stream' then
    local last = redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', 1)[1]
    local newest = last and tonumber(string.match(last[1], '^%d+')) or 0
    for at = 1, #words, width do
      if tonumber(string.match(words[at], '^%d+')) > newest then
        redis.call('XADD', keys[1], unpack(words, at, at + width - 1))
      end
    end
  else
    in_slices(kind == 'hash' and 'HSET' or 'SADD', keys[1], words, width)
  end
  if redis.call('EXISTS', keys.account) == 1 then
    note_beginning(asker.services)
  end
  return {'done'}
end

-- KEYS  account, acts.  ARGV  act; services, each service's id and its writes
-- Lets the services on again.
local function reconcile(keys, args, asker)
  local act = read_act(args)
  if not read_account(keys.account, 'the lineage') then
    return {'unknown'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  local known = {}
  for _, sent in ipairs(args.services) do
    local writes = amount(sent.writes)
    known[#known + 1] = {sent.service, math.max(read_asker(asker.services, word(sent.service), 0).writes, writes)}
  end
  write_act(keys.account, keys.acts, act)
  for _, service in ipairs(known) do
    local number = read_asker(asker.services, service[1], 0).number -- one before may have been new
    redis.call('HSET', asker.services, service[1], number .. ' ' .. text(service[2]))
  end
  return {'done'}
end

register_on_lineage('restore', {}, restore)
register_on_lineage('reconcile', EVEN_WHEN_FULL, reconcile)
