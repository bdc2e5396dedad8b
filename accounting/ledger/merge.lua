
-- Merge -----------------------------------------------------------------------------------------------------
-- Two lineages become one in acts of several calls, as their keys may lie on three servers: a third is opened in the
-- format `merging`, which only calls of a merge take; each of the two is closed, in a format that no version takes; then
-- the third gets their receipts by `apply`, and last of all the format that others take. Until then the owner may give it
-- up: the third gets a format that no version takes, for good, and after that the two are opened again.

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
  elseif account.blocks > 0 then
    malformed('a lineage with blocks is not merged')
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

-- KEYS  account, acts.  ARGV  act.  What else the account holds is of no use any more, and is not looked at.
local function abandon_merge(keys, args)
  local act, format = read_act(args), redis.call('HGET', keys.account, 'format')
  if not format then
    return {'unknown'}
  elseif format == ABANDONED then
    return {'done'}
  elseif format ~= MERGING then
    return {'is-merged'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  check_right('XADD', keys.acts, '*', '', '')
  write_act(keys.account, keys.acts, act)
  redis.call('HSET', keys.account, 'format', ABANDONED)
  return {'done'}
end

-- KEYS  account, acts.  ARGV  act; into, a lineage in the format `abandoned`
-- One that was merged into that is opened as it was. One that was not yet gets the act all the same, so that a call of
-- `merge_lineage` which is still on its way finds one more than it was prepared of.
local function reopen_lineage(keys, args)
  local act, into = read_act(args), word(args.into)
  local fields = redis.call('HMGET', keys.account, 'format', 'merged')
  local is_closed = fields[1] == MERGED and fields[2] == into
  if not is_closed and not read_account(keys.account, 'the lineage') then
    return {'unknown'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  check_right('XADD', keys.acts, '*', '', '')
  write_act(keys.account, keys.acts, act)
  if is_closed then
    redis.call('HSET', keys.account, 'merged', '', 'format', FORMAT) -- it has no blocks
  end
  return {'done'}
end

register_on_lineage('merge_lineage', EVEN_WHEN_FULL, merge_lineage)
register_on_lineage('finish_merge', EVEN_WHEN_FULL, finish_merge)
register_on_lineage('abandon_merge', EVEN_WHEN_FULL, abandon_merge)
register_on_lineage('reopen_lineage', EVEN_WHEN_FULL, reopen_lineage)
