
-- Archive ---------------------------------------------------------------------------------------------------
-- The oldest receipts of a lineage may lie in files and no more in the store. What decides on a charge stays: accounts,
-- `questions` and the sets of who paid later, terms, acts. So does what verifies: of each account a field `sealed:` and the
-- number of the newest receipt that was archived, a text that says what the account had paid for by then, which the caller
-- computes; an act has a digest of all of them. These are written first and mean nothing before the act is there.

-- KEYS  account, and those of other accounts.  ARGV  upto, the number of the newest receipt that is to be archived; sums, of
--       each account its id and the text
local function seal(keys, args)
  local upto, lineage = amount(args.upto), read_account(keys.account, 'the lineage')
  if not lineage then
    return {'unknown'}
  elseif upto <= lineage.archived or upto >= lineage.seq then
    return {'archived-between'}
  end
  for _, sum in ipairs(args.sums) do
    if redis.call('HEXISTS', keys[word(sum.id)], 'limit') == 0 then
      damaged('the account of ' .. sum.id .. ' is lost')
    end
    word(sum.text)
  end
  for _, sum in ipairs(args.sums) do
    redis.call('HSET', keys[sum.id], 'sealed:' .. text(upto), sum.text)
  end
  return {'done'}
end

-- KEYS  account, acts, receipts.  ARGV  act; after, how many were archived before; upto
-- Writes the act, and takes the receipts up to that number out of the store. The newest receipt stays.
local function archive(keys, args)
  local act, after, upto = read_act(args), amount(args.after), amount(args.upto)
  local lineage = read_account(keys.account, 'the lineage')
  if not lineage then
    return {'unknown'}
  elseif lineage.archived ~= after or upto <= after or upto >= lineage.seq then
    return {'archived-between'}
  end
  check_stream(keys.receipts, lineage, 'the lineage')
  if redis.call('HEXISTS', keys.account, 'sealed:' .. text(upto)) == 0 then
    malformed('what the accounts had paid for is noted before')
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  check_right('XTRIM', keys.receipts, 'MINID', '1')
  check_right('XADD', keys.acts, '*', '', '')
  write_act(keys.account, keys.acts, act)
  redis.call('HSET', keys.account, 'archived', text(upto), 'format', FORMAT_WITH_ARCHIVE)
  redis.call('XTRIM', keys.receipts, 'MINID', text(upto + 1))
  return {'done'}
end

-- KEYS  account, and those of other accounts, with :receipts of each client's.  ARGV  ids, of the accounts; clients, of those
--       that have an index
-- Takes out of the store what the archive left over: what was sealed before, and the clients' indices of receipts that
-- are not there any more. Doing it once more is harmless. Replies {'done'}, or {'more'} where it is to be called again.
local function trim(keys, args)
  local lineage = read_account(keys.account, 'the lineage')
  if not lineage then
    return {'unknown'}
  end
  for _, id in ipairs(args.ids) do
    for _, field in ipairs(redis.call('HKEYS', keys[word(id)])) do
      local upto = string.match(field, '^sealed:(%d+)$')
      if upto and whole(upto) < lineage.archived then -- what is beyond it somebody else may be sealing
        redis.call('HDEL', keys[id], field)
      end
    end
  end
  local left = 10 * SLICE
  for _, id in ipairs(args.clients) do
    local account, index = keys[word(id)], keys[id .. ':receipts']
    local state = read_account(account, 'the account of ' .. id)
    local gone = state and sealed_receipts(account, lineage.archived) or 0
    if state and state.archived < gone then
      local upto = math.min(gone, state.archived + left)
      check_right('XTRIM', index, 'MINID', '1')
      redis.call('HSET', account, 'archived', text(upto))
      redis.call('XTRIM', index, 'MINID', text(upto + 1))
      left = left - (upto - state.archived)
      if left == 0 then
        return {'more'}
      end
    end
  end
  return {'done'}
end

register_on_lineage('seal', EVEN_WHEN_FULL, seal)
register_on_lineage('archive', EVEN_WHEN_FULL, archive)
register_on_lineage('trim', EVEN_WHEN_FULL, trim)
