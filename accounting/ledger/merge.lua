
-- Merge -----------------------------------------------------------------------------------------------------
-- Two lineages become one in acts of several calls, as their keys may lie on three servers: a third is opened in the
-- format `merging`, which only calls of a merge take; each of the two is closed, in a format that no version takes; then
-- the third gets their receipts by `apply`, and last of all the format that others take.

-- KEYS  account, acts, receipts.  ARGV  act; into, the lineage that it is merged into; receipts and newest_act, how many
--       receipts and acts it has, of which the merge was prepared
local function merge_lineage(keys, args)
  local act, account = read_act(args), read_account(keys.account, 'the lineage')
  if not account then
    return {'unknown'}
  elseif account.seq ~= amount(args.receipts) then
    return {'charged-between'}
  elseif (redis.call('HGET', keys.account, 'acts') or '0') ~= text(amount(args.newest_act)) then
    return {'act-between'}
  elseif account.blocks > 0 or account.archived > 0 then
    malformed('a lineage with blocks or archived receipts is not merged')
  end
  check_stream(keys.receipts, account, 'the lineage')
  if is_stale(keys.account, act) then
    return {'stale'}
  end
  check_right('XADD', keys.acts, '*', '', '')
  write_act(keys.account, keys.acts, act)
  redis.call('HSET', keys.account, 'merged', word(args.into), 'format', MERGED)
  return {'done'}
end

-- KEYS  account, acts, receipts.  ARGV  act; receipts, how many it has when it has all of both
local function finish_merge(keys, args)
  local act, account = read_act(args), read_account(keys.account, 'the lineage')
  if not account then
    return {'unknown'}
  elseif account.format ~= MERGING then
    return {'done'}
  elseif account.seq ~= amount(args.receipts) then
    malformed('a merge ends when all receipts are there')
  end
  check_stream(keys.receipts, account, 'the lineage')
  if is_stale(keys.account, act) then
    return {'stale'}
  end
  check_right('XADD', keys.acts, '*', '', '')
  write_act(keys.account, keys.acts, act)
  redis.call('HSET', keys.account, 'format', FORMAT)
  return {'done'}
end

register_on_lineage('merge_lineage', EVEN_WHEN_FULL, merge_lineage)
register_on_lineage('finish_merge', EVEN_WHEN_FULL, finish_merge)
