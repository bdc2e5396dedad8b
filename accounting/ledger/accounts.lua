
-- Accounts --------------------------------------------------------------------------------------------------
-- What the owner does. Each act that changes what may be spent, or by whom, is written to the lineage's acts.
-- KEYS open with services, the lineage's account and its acts.
--
-- What only takes rights away, or writes down what happened, is done by a store that has no memory left, too.

local EVEN_WHEN_FULL = {'allow-oom'}

-- KEYS  and every other key that a lineage of its own has
-- ARGV  limit, accepts, delta, time
local function open_lineage(keys, args)
  local limit = text(amount(args[5]))
  if read_account(keys[2], 'the lineage') then
    return {'exists'}
  end
  check_unused('the lineage', {keys[1], unpack(keys, 3)})
  write_act(keys[2], keys[3], 'open', '', args[5] .. ' ' .. args[6] .. ' ' .. args[7])
  redis.call('HSET', keys[2], 'limit', limit, 'spent', '0', 'accepts', args[6],
    'delta', args[7], 'created', args[8], 'seq', '0')
  return {'opened'}
end

-- KEYS  and clients, keys; the client's account and every other key that a client of its own has
-- ARGV  limit, accepts, delta, time, client, key digest, when the key expires, its scopes
local function add_client(keys, args)
  local limit, name, key = text(amount(args[5])), args[9], read_new_key(args[10], args[11], args[12])
  if not read_account(keys[2], 'the lineage') then
    check_unused('the lineage', rest(keys, 3))
    return {'unknown-lineage'}
  end
  local listed = redis.call('SISMEMBER', keys[4], name) == 1
  if read_account(keys[6], 'the account of ' .. name) then
    return {'exists'}
  end
  check_unused('the account of ' .. name, rest(keys, 7))
  if listed then
    damaged('the account of ' .. name .. ' is lost')
  end
  if redis.call('HEXISTS', keys[5], key.digest) == 1 then
    return {'key-in-use'}
  end
  write_act(keys[2], keys[3], 'add', name, args[5] .. ' ' .. args[6] .. ' ' .. args[7])
  redis.call('HSET', keys[6], 'limit', limit, 'spent', '0', 'accepts', args[6],
    'delta', args[7], 'created', args[8], 'revoked', '0', 'api_keys', pack_keys({key}))
  redis.call('SADD', keys[4], name)
  write_key(keys[5], name, key)
  return {'added'}
end

-- Tells whether an account paid for a loss with a coin, for which its delta must provide.
local function has_coins(tally)
  for _, cost in ipairs(redis.call('HKEYS', tally)) do
    if string.find(cost, 'approximate-', 1, true) then
      return true
    end
  end
  return false
end

-- KEYS  and an account, its tally.  ARGV  limit, accepts, delta, the client or nothing for the lineage,
--       1 if these provide for coins
local function set_budget(keys, args)
  local limit = text(amount(args[5]))
  local account = read_account(keys[4], args[8] == '' and 'the lineage' or 'the account of ' .. args[8])
  if not account then
    return {'unknown'}
  end
  local stricter = (args[6] == 'gaussian' and account.accepts ~= 'gaussian')
    or (args[6] ~= 'unproven' and account.accepts == 'unproven')
  if stricter and redis.call('EXISTS', keys[5]) == 1 then
    return {'too-late'}
  end
  if args[9] ~= '1' and has_coins(keys[5]) then
    return {'coins'}
  end
  write_act(keys[2], keys[3], 'budget', args[8], args[5] .. ' ' .. args[6] .. ' ' .. args[7])
  redis.call('HSET', keys[4], 'limit', limit, 'accepts', args[6], 'delta', args[7])
  return {'set'}
end

-- KEYS  and a client's account.  ARGV  client
-- The right is taken away first: damaged acts, or a damaged account of the lineage, must not keep it alive. Replies
-- {'revoked'}, or {'revoked', what kept the act from being written}.
local function revoke(keys, args)
  if redis.call('HLEN', keys[4]) == 0 then
    return {'unknown-client'}
  end
  local stated = redis.pcall('HGET', keys[2], 'format')
  if type(stated) == 'string' then
    check_format(stated)
  end
  redis.call('HSET', keys[4], 'revoked', '1')
  local ok, _, line = attempt(write_act, keys[2], keys[3], 'revoke', args[5], '')
  return {'revoked', not ok and line or nil}
end

local function short(digest)
  return (string.gsub(string.sub(digest, 1, 6), '.', function(byte)
    return string.format('%02x', string.byte(byte))
  end))
end

-- Returns the keys that stay, and those of them whose end is new, and those that are taken away.
local function end_keys(entries, which, seconds)
  local now, kept, ending, gone = store_seconds(), {}, {}, {}
  for _, key in ipairs(entries) do
    local last = math.min(key.expires == '-' and LARGEST or whole(key.expires), now + seconds)
    if which ~= 'all' and which ~= key.digest then
      kept[#kept + 1] = key
    elseif last <= now then
      gone[#gone + 1] = key
    else
      kept[#kept + 1] = {digest = key.digest, expires = text(last), scopes = key.scopes}
      ending[#ending + 1] = kept[#kept]
    end
  end
  return kept, ending, gone
end

-- KEYS  and keys; the client's account
-- ARGV  client, the act: add-key, rotate-key or remove-key; the new key's digest or nothing, when it expires, its
--       scopes; which former keys end: all, none or a digest; after how many seconds
local function change_keys(keys, args)
  local name, act, which, seconds = args[5], args[6], args[10], amount(args[11])
  local fields = redis.call('HMGET', keys[5], 'api_keys', 'revoked')
  if not fields[1] then
    return {'unknown-client'}
  end
  if fields[2] == '1' then
    return {'revoked'}
  end
  local new = args[7] ~= '' and read_new_key(args[7], args[8], args[9]) or nil
  if new and redis.call('HEXISTS', keys[4], new.digest) == 1 then
    return {'key-in-use'}
  end
  local kept, ending, gone = end_keys(split_keys(fields[1]), which, seconds)
  if #which == 32 and #ending + #gone == 0 then
    return {'unknown-key'}
  end
  kept[#kept + 1] = new
  if #kept > MOST_KEYS then
    return {'too-many-keys'}
  end
  local which_words = #which == 32 and short(which) or which
  local detail = new and short(new.digest) .. ' ' .. terms_of_key(new) .. ', ' or ''
  write_act(keys[2], keys[3], act, name, detail .. 'ends ' .. which_words .. ' after ' .. text(seconds))
  for _, key in ipairs(gone) do
    redis.call('HDEL', keys[4], key.digest)
  end
  for _, key in ipairs(ending) do
    write_key(keys[4], name, key)
  end
  if new then
    write_key(keys[4], name, new)
  end
  redis.call('HSET', keys[5], 'api_keys', pack_keys(kept))
  return {'changed'}
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
-- Replies each account's fields and tally, both empty where there is none: all of one instant. A key that is no
-- hash has a line of text in its place.
local function read(keys)
  local replies = {}
  for position = 2, #keys do
    local found = redis.pcall('HGETALL', keys[position])
    replies[#replies + 1] = found.err and keys[position] .. ' is no hash' or found
  end
  return replies
end

-- KEYS  services; the lineage's keys; then those of the client whom the caller expects.  ARGV  key digest, scope
-- Replies the client's name, or nothing; why it is refused, or nothing; then what `read` replies of the other keys.
local function find_client(keys, args)
  local replies = read(rest(keys, 2))
  local name, refused = find_key(keys[2], args[5], args[6])
  table.insert(replies, 1, refused and refused[1] or '')
  table.insert(replies, 1, name or '')
  return replies
end

-- KEYS  services; any keys.  Replies each key's type, with a stream's newest number behind it.
local function types(keys)
  local replies = {}
  for position = 2, #keys do
    local found = redis.call('TYPE', keys[position]).ok
    if found == 'stream' then
      local described = redis.call('XINFO', 'STREAM', keys[position])
      for place = 1, #described, 2 do
        if described[place] == 'last-generated-id' then
          found = 'stream ' .. string.match(described[place + 1], '^%d+')
        end
      end
    end
    replies[#replies + 1] = found
  end
  return replies
end

register('open_lineage', {}, open_lineage)
register('add_client', {}, add_client)
register('set_budget', EVEN_WHEN_FULL, set_budget)
register('revoke', EVEN_WHEN_FULL, revoke)
register('change_keys', EVEN_WHEN_FULL, change_keys)
register('find_client', {'no-writes'}, find_client)
register('list_clients', {'no-writes'}, list_clients)
register('page', {'no-writes'}, page)
register('pick', {'no-writes'}, pick)
register('read', {'no-writes'}, read)
register('types', {'no-writes'}, types)
