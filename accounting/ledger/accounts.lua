
-- Accounts --------------------------------------------------------------------------------------------------
-- What the owner does. Each act that changes what may be spent, or by whom, is written to the lineage's acts.
-- KEYS open with services, the lineage's account and its acts.

-- ARGV  limit, accepts, delta, time
local function open_lineage(keys, args)
  if redis.call('EXISTS', keys[2]) == 1 then
    return {'exists'}
  end
  redis.call('HSET', keys[2], 'limit', text(amount(args[5])), 'spent', '0', 'accepts', args[6],
    'delta', args[7], 'created', args[8], 'seq', '0', 'acts', '0')
  write_act(keys[2], keys[3], 'open', '', args[5] .. ' ' .. args[6] .. ' ' .. args[7])
  return {'opened'}
end

-- KEYS  and clients, keys; the client's account
-- ARGV  limit, accepts, delta, time, client, key digest
local function add_client(keys, args)
  if redis.call('EXISTS', keys[2]) == 0 then
    return {'unknown-lineage'}
  end
  if redis.call('EXISTS', keys[6]) == 1 then
    return {'exists'}
  end
  if redis.call('HEXISTS', keys[5], args[10]) == 1 then
    return {'key-in-use'}
  end
  redis.call('HSET', keys[6], 'limit', text(amount(args[5])), 'spent', '0', 'accepts', args[6],
    'delta', args[7], 'created', args[8], 'revoked', '0', 'digest', args[10])
  redis.call('SADD', keys[4], args[9])
  redis.call('HSET', keys[5], args[10], args[9])
  write_act(keys[2], keys[3], 'add', args[9], args[5] .. ' ' .. args[6] .. ' ' .. args[7])
  return {'added'}
end

-- KEYS  and an account, its tally.  ARGV  limit, accepts, delta, the client or nothing for the lineage
local function set_budget(keys, args)
  local account = read_account(keys[4])
  if not account then
    return {'unknown'}
  end
  local stricter = (args[6] == 'gaussian' and account.accepts ~= 'gaussian')
    or (args[6] ~= 'unproven' and account.accepts == 'unproven')
  if stricter and redis.call('EXISTS', keys[5]) == 1 then
    return {'too-late'}
  end
  redis.call('HSET', keys[4], 'limit', text(amount(args[5])), 'accepts', args[6], 'delta', args[7])
  write_act(keys[2], keys[3], 'budget', args[8], args[5] .. ' ' .. args[6] .. ' ' .. args[7])
  return {'set'}
end

-- KEYS  and a client's account.  ARGV  client
local function revoke(keys, args)
  if redis.call('EXISTS', keys[4]) == 0 then
    return {'unknown-client'}
  end
  redis.call('HSET', keys[4], 'revoked', '1')
  write_act(keys[2], keys[3], 'revoke', args[5], '')
  return {'revoked'}
end

-- KEYS  and keys; the client's account.  ARGV  client, new key digest
local function rotate_key(keys, args)
  local fields = redis.call('HMGET', keys[5], 'digest', 'revoked')
  if not fields[1] then
    return {'unknown-client'}
  end
  if fields[2] == '1' then
    return {'revoked'}
  end
  if redis.call('HEXISTS', keys[4], args[6]) == 1 then
    return {'key-in-use'}
  end
  redis.call('HDEL', keys[4], fields[1])
  redis.call('HSET', keys[4], args[6], args[5])
  redis.call('HSET', keys[5], 'digest', args[6])
  write_act(keys[2], keys[3], 'rotate-key', args[5], '')
  return {'rotated'}
end

-- KEYS  services; the lineage's keys.  ARGV  key digest.  Replies the client's name, or nothing.
local function find_client(keys, args)
  return {redis.call('HGET', keys[2], args[5])}
end

-- KEYS  services; the lineage's clients
local function list_clients(keys)
  return redis.call('SMEMBERS', keys[2])
end

-- KEYS  services; a stream.  ARGV  first id, last id, the most to return
local function page(keys, args)
  return redis.call('XRANGE', keys[2], args[5], args[6], 'COUNT', args[7])
end

-- KEYS  services; a stream.  ARGV  ids.  Replies the entries that there are, in the order of their ids here.
local function pick(keys, args)
  local found = {}
  for position = 5, #args do
    found[#found + 1] = redis.call('XRANGE', keys[2], args[position], args[position])[1]
  end
  return found
end

-- KEYS  services; accounts and their tallies, as many as there are.
-- Replies each account's fields and tally, both empty where there is none: all of one instant.
local function read(keys)
  local replies = {}
  for position = 2, #keys do
    replies[#replies + 1] = redis.call('HGETALL', keys[position])
  end
  return replies
end

register('open_lineage', {}, open_lineage)
register('add_client', {}, add_client)
register('set_budget', {}, set_budget)
register('revoke', {}, revoke)
register('rotate_key', {}, rotate_key)
register('find_client', {'no-writes'}, find_client)
register('list_clients', {'no-writes'}, list_clients)
register('page', {'no-writes'}, page)
register('pick', {'no-writes'}, pick)
register('read', {'no-writes'}, read)
