
-- Accounts --------------------------------------------------------------------------------------------------
-- A lineage's account is a hash: format, limit, highest (of the former limits that were in force since the first
-- charge), spent, accepts, delta, coins (how many its delta provides for), coined (how many it paid for), created, seq
-- (how many receipts there are), asked (how many questions were paid for), clients (how many), acts and acts_head; and
-- for each cost that it paid for `n:` and the cost, how often. A client's account has number and revoked instead of
-- format, clients, acts and acts_head, and for each API key `k:` and its digest; its seq counts the receipts that the
-- client sees, and asked what its own set holds.

local function read_account(key, what)
  local fields = redis.call('HMGET', key, 'limit', 'spent', 'accepts', 'delta', 'coins', 'coined', 'seq', 'revoked',
    'number', 'format', 'asked', 'highest')
  if not fields[1] then
    if redis.call('EXISTS', key) == 1 then
      damaged(what .. ' has no limit')
    end
    return nil
  end
  if what == 'the lineage' and fields[10] ~= FORMAT then
    error({word = 'format', line = fields[10] or '1'}, 0)
  end
  if not (fields[3] == 'any' or fields[3] == 'gaussian' or fields[3] == 'unproven') or not fields[4] then
    damaged(what .. ' cannot be read')
  end
  return {
    limit = stored(fields[1], what), spent = stored(fields[2], what), accepts = fields[3], delta = fields[4],
    coins = stored(fields[5], what), coined = stored(fields[6], what), seq = stored(fields[7], what),
    asked = stored(fields[11], what), highest = stored(fields[12], what), revoked = fields[8], number = fields[9],
  }
end

-- An account that is gone while other keys of its own are there was lost: it must not begin anew, with nothing spent.
local function check_unused(what, others)
  for first = 1, #others, SLICE do
    if redis.call('EXISTS', unpack(others, first, math.min(first + SLICE - 1, #others))) > 0 then
      damaged(what .. ' is lost: other keys of its own are there')
    end
  end
end

-- Gives a client who is new to the lineage the next number and its account. The number is used up first: two clients of
-- one number would be taken to have paid for each other's questions.
local function write_client(lineage, clients, account, name, fields)
  local number = text(stored(redis.call('HGET', lineage, 'clients'), 'the number of clients') + 1)
  redis.call('HSET', lineage, 'clients', number)
  redis.call('HSET', clients, name, number)
  redis.call('HSET', account, 'number', number, 'highest', '0', 'spent', '0', 'coined', '0', 'seq', '0', 'asked', '0',
    unpack(fields))
end

-- Acts: what the owner changed, a chain of hashes that the caller computes. Each carries its number, from 1 on without
-- a gap. A caller who does not know the end of the chain is told of it by `end_of_acts`, with the store's own time.

local function read_act(args)
  if not args[6] or #args[6] ~= 32 then
    malformed('an act has a number, four words and a hash')
  end
  return {known = args[1], kind = args[2], subject = args[3], detail = args[4], time = args[5], hash = args[6]}
end

local function is_stale(account, act)
  return (redis.call('HGET', account, 'acts') or '0') ~= act.known
end

local function write_act(account, acts, act)
  local number = text(stored(redis.call('HGET', account, 'acts') or '0', 'the number of acts') + 1)
  redis.call('XADD', acts, number .. '-0', 'kind', act.kind, 'subject', act.subject, 'detail', act.detail,
    'time', act.time, 'hash', act.hash)
  redis.call('HSET', account, 'acts', number, 'acts_head', act.hash)
end

-- KEYS  the lineage's account.  Replies the number and the hash of its newest act, and the store's time.
local function end_of_acts(keys)
  local now = redis.call('TIME')
  local fields = redis.call('HMGET', keys[1], 'acts', 'acts_head')
  return {fields[1] or '0', fields[2] or '', now[1] .. '.' .. string.rep('0', 6 - #now[2]) .. now[2]}
end

-- API keys: a client's account has the terms of each of its keys in the field `k:` and the key's SHA-256:
--
--   expires ' ' scopes       expires: whole seconds since the epoch, or '-'; scopes: words between commas
--
-- and the lineage's `keys` is a hash from the SHA-256 to the terms, a space and the client. A charge looks at the
-- account; a key that was slipped in, or made to last, is found out by whoever compares both. A key ends by the store's
-- own clock, at the very instant of the charge that it would pay for.

local MOST_KEYS = 16

local function split_terms(terms)
  local expires, scopes = string.match(terms, '^(%S+) ([a-z,-]+)$')
  if not expires or not (expires == '-' or whole(expires)) then
    damaged('an API key cannot be read')
  end
  return expires, scopes
end

-- Returns the terms of each API key of a client, by its digest, and how many there are.
local function keys_of(account)
  local found, count, flat = {}, 0, redis.call('HGETALL', account)
  for at = 1, #flat, 2 do
    if string.sub(flat[at], 1, 2) == 'k:' then
      found[string.sub(flat[at], 3)], count = flat[at + 1], count + 1
    end
  end
  return found, count
end

local function read_new_key(digest, expires, scopes)
  if #digest ~= 32 or not (expires == '-' or whole(expires)) or not string.find(scopes, '^[a-z,-]+$') then
    malformed('an API key needs a digest of 32 bytes, when it expires, and scopes')
  end
  return {digest = digest, terms = expires .. ' ' .. scopes}
end

-- The account comes last: it alone opens anything.
local function write_key(api_keys, name, account, key)
  redis.call('HSET', api_keys, key.digest, key.terms .. ' ' .. name)
  redis.call('HSET', account, 'k:' .. key.digest, key.terms)
end

local function store_seconds()
  return tonumber(redis.call('TIME')[1])
end

-- Returns the refusal of what asks for this scope with the key of this digest as the client's whose account it is.
local function refuse_key(account, digest, scope)
  local terms = account and redis.call('HGET', account, 'k:' .. digest)
  if not terms then
    return {'unknown-key'}
  end
  local expires, scopes = split_terms(terms)
  if expires ~= '-' and store_seconds() >= whole(expires) then
    return {'key-expired'}
  end
  if not string.find(',' .. scopes .. ',', ',' .. scope .. ',', 1, true) then
    return {'key-scope', scope}
  end
  return nil
end

-- What the owner does -----------------------------------------------------------------------------------------
-- Each act that changes what may be spent, or by whom, is written to the lineage's acts: KEYS open with the lineage's
-- account and its acts, ARGV with what `read_act` reads. Who does not know the newest act is told {'stale'}.
--
-- What only takes rights away, or writes down what happened, is done by a store that has no memory left, too.

local EVEN_WHEN_FULL = {'allow-oom'}

-- KEYS  and every other key of a lineage of its own.  ARGV  and limit, accepts, delta, coins, time
local function open_lineage(keys, args, asker)
  local act, limit, coins = read_act(args), amount(args[7]), amount(args[10])
  if read_account(keys[1], 'the lineage') then
    return {'exists'}
  end
  check_unused('the lineage', rest(keys, 2))
  if is_stale(keys[1], act) then
    return {'stale'}
  end
  write_act(keys[1], keys[2], act)
  redis.call('HSET', keys[1], 'format', FORMAT, 'limit', text(limit), 'highest', '0', 'spent', '0', 'accepts', args[8],
    'delta', args[9], 'coins', text(coins), 'coined', '0', 'created', args[11], 'seq', '0', 'asked', '0',
    'clients', '0')
  note_beginning(asker.services)
  return {'done'}
end

-- KEYS  and clients, keys; the client's account and every other key of a client of its own
-- ARGV  and limit, accepts, delta, coins, time, key digest, when the key expires, its scopes
local function add_client(keys, args)
  local act, limit, coins = read_act(args), amount(args[7]), amount(args[10])
  local key, name = read_new_key(args[12], args[13], args[14]), act.subject
  if not read_account(keys[1], 'the lineage') then
    check_unused('the lineage', rest(keys, 2))
    return {'unknown-lineage'}
  end
  local listed = redis.call('HEXISTS', keys[3], name) == 1
  if read_account(keys[5], 'the account of ' .. name) then
    return {'exists'}
  end
  check_unused('the account of ' .. name, rest(keys, 6))
  if listed then
    damaged('the account of ' .. name .. ' is lost')
  elseif redis.call('HEXISTS', keys[4], key.digest) == 1 then
    return {'key-in-use'}
  elseif is_stale(keys[1], act) then
    return {'stale'}
  end
  write_act(keys[1], keys[2], act)
  write_client(keys[1], keys[3], keys[5], name, {
    'limit', text(limit), 'accepts', args[8], 'delta', args[9], 'coins', text(coins),
    'created', args[11], 'revoked', '0',
  })
  write_key(keys[4], name, keys[5], key)
  return {'done'}
end

-- KEYS  and the account.  ARGV  and limit, accepts, delta, coins
local function set_budget(keys, args)
  local act, limit, coins = read_act(args), amount(args[7]), amount(args[10])
  local account = read_account(keys[3], act.subject == '' and 'the lineage' or 'the account of ' .. act.subject)
  if not account then
    return {'unknown'}
  end
  local stricter = (args[8] == 'gaussian' and account.accepts ~= 'gaussian')
    or (args[8] ~= 'unproven' and account.accepts == 'unproven')
  if stricter and account.seq > 0 then
    return {'too-late'}
  elseif coins < account.coined then
    return {'coins'}
  elseif is_stale(keys[1], act) then
    return {'stale'}
  end
  local highest = account.seq > 0 and math.max(account.highest, account.limit) or 0
  write_act(keys[1], keys[2], act)
  redis.call('HSET', keys[3], 'limit', text(limit), 'highest', text(highest), 'accepts', args[8], 'delta', args[9],
    'coins', text(coins))
  return {'done'}
end

-- KEYS  and the client's account
-- The right is taken away first: damaged acts, or a damaged account of the lineage, must not keep it alive. Replies
-- {'done'}, {'stale'} or {'unwritten', what kept the act from being written}.
local function revoke(keys, args)
  local act = read_act(args)
  if redis.call('HLEN', keys[3]) == 0 then
    return {'unknown'}
  end
  redis.call('HSET', keys[3], 'revoked', '1')
  local ok, stale, line = attempt(is_stale, keys[1], act)
  if ok and stale then
    return {'stale'}
  elseif ok then
    ok, stale, line = attempt(write_act, keys[1], keys[2], act)
  end
  return ok and {'done'} or {'unwritten', line}
end

-- KEYS  and keys; the client's account
-- ARGV  and the new key's digest or nothing, when it expires, its scopes; which former keys end: all, none or a
--       digest; after how many seconds
local function change_keys(keys, args)
  local act, which, seconds = read_act(args), args[10], amount(args[11])
  local fields = redis.call('HMGET', keys[4], 'limit', 'revoked')
  if not fields[1] then
    return {'unknown'}
  elseif fields[2] == '1' then
    return {'revoked'}
  end
  local new = args[7] ~= '' and read_new_key(args[7], args[8], args[9]) or nil
  if new and redis.call('HEXISTS', keys[3], new.digest) == 1 then
    return {'key-in-use'}
  end
  local now, ending, gone = store_seconds(), {}, {}
  local owned, count = keys_of(keys[4])
  for digest, terms in pairs(owned) do
    if which == 'all' or which == digest then
      local expires, scopes = split_terms(terms)
      local last = math.min(expires == '-' and LARGEST or whole(expires), now + seconds)
      if last <= now then
        gone[#gone + 1] = digest
      else
        ending[#ending + 1] = {digest = digest, terms = text(last) .. ' ' .. scopes}
      end
    end
  end
  if #which == 32 and #ending + #gone == 0 then
    return {'unknown-key'}
  elseif count - #gone + (new and 1 or 0) > MOST_KEYS then
    return {'too-many-keys'}
  elseif is_stale(keys[1], act) then
    return {'stale'}
  end
  write_act(keys[1], keys[2], act)
  for _, digest in ipairs(gone) do
    redis.call('HDEL', keys[4], 'k:' .. digest)
    redis.call('HDEL', keys[3], digest)
  end
  ending[#ending + 1] = new
  for _, key in ipairs(ending) do
    write_key(keys[3], act.subject, keys[4], key)
  end
  return {'done'}
end

-- Looking -----------------------------------------------------------------------------------------------------

-- KEYS  any.  Replies the fields of each hash, all of one instant, nothing where there is none. A key that is no hash
-- has a line of text in its place.
local function read(keys)
  local replies = {}
  for position, key in ipairs(keys) do
    local found = redis.pcall('HGETALL', key)
    replies[position] = found.err and key .. ' is no hash' or found
  end
  return replies
end

-- KEYS  the lineage's keys; then the account of the client whom the caller expects.  ARGV  key digest, scope
-- Replies the client's name, or nothing; then, of the account of that name, why it is refused, or nothing, and the
-- fields.
local function find_client(keys, args)
  local entry = redis.call('HGET', keys[1], args[1])
  if not entry then
    return {''}
  end
  local name = string.match(entry, '^%S+ %S+ (.+)$') or damaged('an API key cannot be read')
  if not keys[2] then
    return {name}
  end
  local refused = refuse_key(keys[2], args[1], args[2])
  return {name, refused and refused[1] or '', redis.call('HGETALL', keys[2])}
end

-- KEYS  a stream.  ARGV  above which number, the most to return, 1 for the newest first
local function page(keys, args)
  if args[3] == '1' then
    return redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', args[2])
  end
  return redis.call('XRANGE', keys[1], text(amount(args[1]) + 1), '+', 'COUNT', args[2])
end

-- KEYS  a client's index; the receipts.  ARGV  as for `page`.  Replies the receipts that the index names.
local function page_of_client(keys, args)
  local found = {}
  for _, entry in ipairs(page(keys, args)) do
    local own, number = string.match(entry[1], '^(%d+)-(%d+)$')
    local id = number .. '-' .. own
    found[#found + 1] = redis.call('XRANGE', keys[2], id, id)[1] or damaged('a client\'s receipt is not there')
  end
  return found
end

-- KEYS  a hash, or a set.  ARGV  the cursor.  Replies the next cursor and some of the fields and their values: of a set
-- its members, each with nothing behind it.
local function scan(keys, args)
  if redis.call('TYPE', keys[1]).ok ~= 'set' then
    return redis.call('HSCAN', keys[1], args[1], 'COUNT', SLICE)
  end
  local found, flat = redis.call('SSCAN', keys[1], args[1], 'COUNT', SLICE), {}
  for _, member in ipairs(found[2]) do
    flat[#flat + 1], flat[#flat + 2] = member, ''
  end
  return {found[1], flat}
end

-- KEYS  any.  Replies each key's type, with a stream's newest number behind it.
local function types(keys)
  local replies = {}
  for position, key in ipairs(keys) do
    local found = redis.call('TYPE', key).ok
    if found == 'stream' then
      local described = redis.call('XINFO', 'STREAM', key)
      for place = 1, #described, 2 do
        if described[place] == 'last-generated-id' then
          found = 'stream ' .. string.match(described[place + 1], '^%d+')
        end
      end
    end
    replies[position] = found
  end
  return replies
end

register_on_lineage('open_lineage', {}, open_lineage)
register_on_lineage('add_client', {}, add_client)
register_on_lineage('set_budget', EVEN_WHEN_FULL, set_budget)
register_on_lineage('revoke', EVEN_WHEN_FULL, revoke)
register_on_lineage('change_keys', EVEN_WHEN_FULL, change_keys)
register_on_lineage('end_of_acts', {'no-writes'}, end_of_acts)
register_on_lineage('find_client', {'no-writes'}, find_client)
register_on_lineage('page', {'no-writes'}, page)
register_on_lineage('page_of_client', {'no-writes'}, page_of_client)
register_on_lineage('read', {'no-writes'}, read)
register_on_lineage('scan', {'no-writes'}, scan)
register_on_lineage('types', {'no-writes'}, types)
