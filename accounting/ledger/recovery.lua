
-- Recovery --------------------------------------------------------------------------------------------------
-- Putting back what a store lost. Nothing here looks at a limit: what was released was released, and an account
-- may come out of this having spent more than its limit, which refuses it everything from then on.

-- KEYS  services; the lineage's account, acts, tally, receipts, held, rows, applied, keys, clients, then each
--       client's account
-- ARGV  the number of the lineage's fields, these; how many receipts were put back under new numbers, their former
--       hashes; how many services wrote to the lineage, these; for each client its name, its API keys, the number of
--       its fields, these; then each act's id and its fields (kind, subject, detail, time, previous, hash)
-- Writes a lineage of which there is nothing as a backup has it, but for its limit, which `finish_restore` sets, and
-- its receipts, which `apply` puts back before that.
local function restore(keys, args)
  if redis.call('EXISTS', keys[2]) == 1 then
    return {'exists'}
  end
  check_unused('the lineage', rest(keys, 3))
  local at = 5
  local function fields()
    local count = amount(args[at])
    if count < 2 or count % 2 ~= 0 or at + count > #args then
      malformed('an account must come whole')
    end
    at = at + 1 + count
    return {unpack(args, at - count, at - 1)}
  end
  local function list()
    local count = amount(args[at])
    if at + count > #args then
      malformed('a list must come whole')
    end
    at = at + 1 + count
    return at - count, at - 1
  end
  local own, others = fields(), {}
  local first_applied, last_applied = list()
  local first_service, last_service = list()
  for place = 11, #keys do
    local name, own_keys = args[at], split_keys(args[at + 1])
    at = at + 2
    others[place] = {name = name, api_keys = own_keys, fields = fields()}
  end
  if (#args - at + 1) % 7 ~= 0 then
    malformed('acts must come whole')
  end
  while at <= #args do
    redis.call('XADD', keys[3], args[at], 'kind', args[at + 1], 'subject', args[at + 2], 'detail', args[at + 3],
      'time', args[at + 4], 'previous', args[at + 5], 'hash', args[at + 6])
    at = at + 7
  end
  redis.call('HSET', keys[2], unpack(own))
  for position = first_applied, last_applied do
    redis.call('SADD', keys[8], args[position])
  end
  for position = first_service, last_service do
    redis.call('HSETNX', keys[1], args[position], '0') -- known, and less than any journal says
  end
  for place, client in pairs(others) do
    redis.call('HSET', keys[place], unpack(client.fields))
    redis.call('SADD', keys[10], client.name)
    for _, key in ipairs(client.api_keys) do
      write_key(keys[9], client.name, key)
    end
  end
  return {'restored'}
end

-- KEYS  services; the lineage's account.  ARGV  its limit.  Lets the lineage spend, once all of it was restored.
local function finish_restore(keys, args)
  if not read_account(keys[2], 'the lineage') then
    return {'unknown-lineage'}
  end
  redis.call('HSET', keys[2], 'limit', text(amount(args[5])))
  return {'finished'}
end

-- A client whose receipts outlived its account gets the account back, revoked: its name stays its own. (It is this
-- and not `damaged` here, because putting back more than there was only ever takes away from what may be spent.)
local function bring_back(lineage, client, clients, time)
  redis.call('SISMEMBER', clients, client.name) -- which fails, before anything is written, if it is no set
  if not read_account(client.account, 'the account of ' .. client.name) then
    redis.call('HSET', client.account, 'limit', '0', 'spent', '0', 'accepts', 'any',
      'delta', redis.call('HGET', lineage.account, 'delta'), 'created', time, 'revoked', '1', 'api_keys', '')
    redis.call('SADD', clients, client.name)
  end
end

local APPLIED_FIELDS = 11

-- KEYS  services; the lineage's account, tally, receipts, applied, clients; then each client's account, tally,
--       receipts
-- ARGV  lineage; for each receipt its client's place (0 for none), client, model, mechanism, cost, price, rows,
--       time, number, hash, digest of its terms
local function apply_receipt(lineage, keys, args, at)
  local client = nil
  if args[at] ~= '0' then
    local first = 3 * amount(args[at]) + 4
    client = {account = keys[first], tally = keys[first + 1], receipts = keys[first + 2], name = args[at + 1]}
  end
  local charged = {
    lineage = args[5], model = args[at + 2], mechanism = args[at + 3], cost = args[at + 4],
    price = amount(args[at + 5]),
  }
  local rows, hash, terms = amount(args[at + 6]), args[at + 9], args[at + 10]
  local id = text(amount(args[at + 8])) .. '-0'
  local found = redis.call('XRANGE', lineage.receipts, id, id)
  local there = found[1] and found[1][2][22] == hash
  if redis.call('SISMEMBER', keys[5], hash) == 1 or there then
    return 'there'
  end
  local next_hash = receipt_hash(lineage.state.head, terms, lineage.state.seq + 1, rows)
  if client then
    bring_back(lineage, client, keys[6], args[at + 7])
    client.state = read_account(client.account, client.name)
  end
  write_receipt(lineage, client, charged, rows, args[at + 7], next_hash)
  if client then
    write_books(client)
  end
  write_books(lineage)
  write_chain(lineage)
  if next_hash == hash then
    return 'appended'
  end
  redis.call('SADD', keys[5], hash)
  return 'again'
end

-- Replies to each 'there' if the ledger has this receipt; 'appended' if it came next and is as it was; 'again'
-- if it is charged under a new number, because the chain went on without it. To apply it once more is harmless.
local function apply(keys, args)
  if (#args - 5) % APPLIED_FIELDS ~= 0 then
    malformed('receipts must come whole')
  end
  local lineage = {account = keys[2], tally = keys[3], receipts = keys[4], name = 'the lineage'}
  lineage.state = read_account(lineage.account, lineage.name)
  if not lineage.state then
    return {'unknown-lineage'}
  end
  local replies = {}
  for at = 6, #args, APPLIED_FIELDS do
    replies[#replies + 1] = apply_receipt(lineage, keys, args, at)
  end
  return replies
end

-- KEYS  services; the lineage's account, acts.  ARGV  what was done; then each service's id and its writes
-- Lets the services on again, in a new epoch.
local function reconcile(keys, args)
  local state = read_account(keys[2], 'the lineage')
  if not state then
    return {'unknown-lineage'}
  end
  local services = {}
  for at = 6, #args, 2 do
    local known = stored_amount(redis.call('HGET', keys[1], args[at]) or '0', "the count of a service's writes")
    services[#services + 1] = args[at]
    services[#services + 1] = text(math.max(amount(args[at + 1]), known))
  end
  local epoch = stored_amount(state.epoch, 'the epoch') + 1
  write_act(keys[2], keys[3], 'reconcile', '', args[5])
  redis.call('HSET', keys[2], 'epoch', text(epoch))
  if #services > 0 then
    redis.call('HSET', keys[1], unpack(services))
  end
  return {'reconciled'}
end

register('restore', {}, restore)
register('finish_restore', {}, finish_restore)
register('apply', EVEN_WHEN_FULL, apply)
register('reconcile', EVEN_WHEN_FULL, reconcile)
