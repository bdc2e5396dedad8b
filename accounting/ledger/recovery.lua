
-- Recovery --------------------------------------------------------------------------------------------------
-- Putting back what a store lost. Nothing here looks at a limit: what was released was released, and an account
-- may come out of this having spent more than its limit, which refuses it everything from then on.

-- KEYS  services; the lineage's account, acts, keys, clients, then each client's account
-- ARGV  the number of the lineage's fields, these; for each client its name, key digest, their number, these;
--       then each act's id and its fields (kind, subject, detail, time, previous, hash)
-- Writes a lineage that does not exist as a backup has it, but for its receipts, which `apply` puts back.
local function restore(keys, args)
  if redis.call('EXISTS', keys[2]) == 1 then
    return {'exists'}
  end
  local at = 5
  local function fields()
    local count = tonumber(args[at])
    at = at + 1 + count
    return unpack(args, at - count, at - 1)
  end
  redis.call('HSET', keys[2], fields())
  for place = 6, #keys do
    local name, digest = args[at], args[at + 1]
    at = at + 2
    redis.call('HSET', keys[place], fields())
    redis.call('SADD', keys[5], name)
    if digest ~= '' then
      redis.call('HSET', keys[4], digest, name)
    end
  end
  while at <= #args do
    redis.call('XADD', keys[3], args[at], 'kind', args[at + 1], 'subject', args[at + 2], 'detail', args[at + 3],
      'time', args[at + 4], 'previous', args[at + 5], 'hash', args[at + 6])
    at = at + 7
  end
  return {'restored'}
end

-- A client whose receipts outlived its account gets the account back, revoked: its name stays its own.
local function bring_back(lineage, client, clients, time)
  if redis.call('EXISTS', client.account) == 0 then
    redis.call('HSET', client.account, 'limit', '0', 'spent', '0', 'accepts', 'any',
      'delta', redis.call('HGET', lineage.account, 'delta'), 'created', time, 'revoked', '1', 'digest', '')
    redis.call('SADD', clients, client.name)
  end
end

-- KEYS  services; the lineage's account, tally, receipts, applied, clients; then each client's account, tally,
--       receipts
-- ARGV  lineage; for each receipt its client's place (0 for none), client, model, mechanism, cost, price, rows,
--       time, number, hash, digest of its terms
-- Replies to each 'there' if the ledger has this receipt; 'appended' if it came next and is as it was; 'again'
-- if it is charged under a new number, because the chain went on without it. To apply it once more is harmless.
local function apply(keys, args)
  local lineage = {account = keys[2], tally = keys[3], receipts = keys[4]}
  if redis.call('EXISTS', lineage.account) == 0 then
    return {'unknown-lineage'}
  end
  local replies = {}
  for at = 6, #args, 11 do
    local first = 3 * amount(args[at]) + 4
    local client = {name = args[at + 1]}
    if args[at] ~= '0' then
      client.account, client.tally, client.receipts = keys[first], keys[first + 1], keys[first + 2]
    end
    local charged = {
      lineage = args[5], model = args[at + 2], mechanism = args[at + 3], cost = args[at + 4],
      price = amount(args[at + 5]), rows = amount(args[at + 6]), time = args[at + 7],
    }
    local number, hash, terms = amount(args[at + 8]), args[at + 9], args[at + 10]
    local account = read_account(lineage.account)
    local id = text(number) .. '-0'
    local found = redis.call('XRANGE', lineage.receipts, id, id)
    local there = found[1] and found[1][2][22] == hash
    if there or redis.call('SISMEMBER', keys[5], hash) == 1 then
      replies[#replies + 1] = 'there'
    else
      local next_number = account.seq + 1
      local next_hash = receipt_hash(account.head, terms, next_number, charged.rows)
      if client.account then
        bring_back(lineage, client, keys[6], charged.time)
      end
      write_receipt(lineage, client, charged, next_number, account.head, next_hash)
      if next_hash ~= hash then
        redis.call('SADD', keys[5], hash)
      end
      replies[#replies + 1] = next_hash == hash and 'appended' or 'again'
    end
  end
  return replies
end

-- KEYS  services; the lineage's account, acts.  ARGV  what was done; then each service's id and its writes
-- Lets the services on again, in a new epoch.
local function reconcile(keys, args)
  if redis.call('EXISTS', keys[2]) == 0 then
    return {'unknown-lineage'}
  end
  for at = 6, #args, 2 do
    local writes = math.max(amount(args[at + 1]), amount(redis.call('HGET', keys[1], args[at]) or '0'))
    redis.call('HSET', keys[1], args[at], text(writes))
  end
  redis.call('HINCRBY', keys[2], 'epoch', 1)
  write_act(keys[2], keys[3], 'reconcile', '', args[5])
  return {'reconciled'}
end

register('restore', {}, restore)
register('apply', {}, apply)
register('reconcile', {}, reconcile)
