
-- Accounts --------------------------------------------------------------------------------------------------
-- A lineage's account is a hash: format, limit, highest (of the former limits that were in force since the first
-- charge), spent, accepts, delta, coins (how many its delta provides for), coined (how many it paid for), created, seq
-- (how many receipts there are), asked (how many questions were paid for), clients (how many accounts it has numbered),
-- acts and acts_head, unit (the column of privacy units, empty for a record, or nothing before its first model), blocks
-- (how many it has with a name); and for each cost that it paid for `n:` and the cost, how often. Its limit, highest,
-- spent, accepts, delta, coins, coined and tally are those of the block without a name; seq and asked count for all. A client's account has number and
-- revoked instead of format, clients, acts and acts_head, group (which it belongs to, or nothing) and display (how the
-- owner calls it, or nothing), and for each API key `k:` and its digest; its seq counts the receipts that the client
-- sees, and asked what its own set holds. So does a group's, without API keys and a group. One whose limit rose above
-- highest after a charge has raised: how often, a space, and the limit before the first time. A block's account has the
-- fields of a group's; its seq counts the receipts that name it, and asked the questions that it paid for.
--
local function store_seconds()
  return tonumber(redis.call('TIME')[1])
end

-- Which charges an account may accept. One counts pure epsilon, the others rho; both in whole numbers of 1e-12.
local ACCEPTS = {
  gaussian = {}, any = {}, pure = {counts_epsilon = true}, unproven = {takes_claims = true},
  ['unproven-pure'] = {counts_epsilon = true, takes_claims = true},
}

local function read_account(key, what)
  local fields = redis.call('HMGET', key, 'limit', 'spent', 'accepts', 'delta', 'coins', 'coined', 'seq', 'revoked',
    'number', 'format', 'asked', 'highest', 'group', 'blocks')
  if not fields[1] then
    if redis.call('EXISTS', key) == 1 then
      damaged(what .. ' has no limit')
    end
    return nil
  end
  if what == 'the lineage' then
    local format = fields[10] or 'none'
    if format ~= FORMAT then
      error({word = 'format', line = format}, 0)
    end
  end
  if not ACCEPTS[fields[3] or ''] or not fields[4] then
    damaged(what .. ' cannot be read')
  end
  return {
    limit = stored(fields[1], what), spent = stored(fields[2], what), accepts = fields[3], delta = fields[4],
    coins = stored(fields[5], what), coined = stored(fields[6], what), seq = stored(fields[7], what),
    asked = stored(fields[11], what), highest = stored(fields[12], what), revoked = fields[8], number = fields[9],
    group = fields[13] or '', blocks = stored(fields[14] or '0', what),
    counts_epsilon = ACCEPTS[fields[3]].counts_epsilon, takes_claims = ACCEPTS[fields[3]].takes_claims,
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

-- Gives an account that is new to the lineage the next number, and its fields. The number is used up first: two accounts
-- of one number would be taken to have paid for each other's questions.
local function write_new(lineage, names, account, scope, name, fields)
  local number = text(stored(redis.call('HGET', lineage, 'clients'), 'the number of clients') + 1)
  redis.call('HSET', lineage, 'clients', number)
  if scope == 'block' then
    local blocks = stored(redis.call('HGET', lineage, 'blocks'), 'the number of blocks')
    redis.call('HSET', lineage, 'blocks', text(blocks + 1))
  end
  redis.call('HSET', names, name, number)
  redis.call('HSET', account, 'number', number, 'highest', '0', 'spent', '0', 'coined', '0', 'seq', '0', 'asked', '0',
    unpack(fields))
end

-- Acts: what the owner did, a chain of hashes that the caller computes. Each carries its number, from 1 on without a
-- gap. A caller who does not know the end of the chain is told of it by `end_of_acts`, with the store's own time.

local ACT = {'kind', 'subject', 'detail', 'by', 'why', 'time', 'hash'}

local function read_act(args)
  local act = type(args.act) == 'table' and args.act or malformed('an act must come whole')
  for _, name in ipairs(ACT) do
    word(act[name])
  end
  if #act.hash ~= 32 then
    malformed('an act has a hash of 32 bytes')
  end
  return act
end

local function is_stale(account, act)
  return (redis.call('HGET', account, 'acts') or '0') ~= act.known
end

local function write_act(account, acts, act)
  local number = text(stored(redis.call('HGET', account, 'acts') or '0', 'the number of acts') + 1)
  local fields = {}
  for _, name in ipairs(ACT) do
    fields[#fields + 1], fields[#fields + 2] = name, act[name]
  end
  redis.call('XADD', acts, number .. '-0', unpack(fields))
  redis.call('HSET', account, 'acts', number, 'acts_head', act.hash)
end

local function read_budget(args)
  local budget = args.budget
  if type(budget) ~= 'table' then
    malformed('a budget must come whole')
  end
  if not ACCEPTS[word(budget.accepts)] then
    malformed('a budget says what the account accepts')
  end
  return {
    limit = amount(budget.limit), accepts = budget.accepts, delta = word(budget.delta),
    coins = amount(budget.coins),
  }
end

local function written_budget(budget)
  return {'limit', text(budget.limit), 'accepts', budget.accepts, 'delta', budget.delta, 'coins', text(budget.coins)}
end

-- KEYS  the lineage's account.  Replies the number and the hash of its newest act, and the store's time.
local function end_of_acts(keys)
  local now = redis.call('TIME')
  local fields = redis.call('HMGET', keys.account, 'acts', 'acts_head')
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

local function read_new_key(key)
  if #word(key.digest) ~= 32 or not (key.expires == '-' or whole(key.expires))
    or not string.find(word(key.scopes), '^[a-z,-]+$') then
    malformed('an API key needs a digest of 32 bytes, when it expires, and scopes')
  end
  return {digest = key.digest, terms = key.expires .. ' ' .. key.scopes}
end

-- The account comes last: it alone opens anything.
local function write_key(api_keys, name, account, key)
  redis.call('HSET', api_keys, key.digest, key.terms .. ' ' .. name)
  redis.call('HSET', account, 'k:' .. key.digest, key.terms)
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
-- Each act is written to the lineage's acts. ARGV have it as `act`, and `id`, the name of the key of the account that it
-- is about. Who does not know the newest act is told {'stale'}.
--
-- What only takes rights away, or writes down what happened, is done by a store that has no memory left, too.

local EVEN_WHEN_FULL = {'allow-oom'}

-- KEYS  every key of a lineage of its own.  ARGV  and budget, created
local function open_lineage(keys, args, asker)
  local act, budget = read_act(args), read_budget(args)
  if read_account(keys.account, 'the lineage') then
    return {'exists'}
  end
  check_unused('the lineage', keys)
  if is_stale(keys.account, act) then
    return {'stale'}
  end
  write_act(keys.account, keys.acts, act)
  redis.call('HSET', keys.account, 'format', FORMAT, 'highest', '0', 'spent', '0', 'coined', '0',
    'seq', '0', 'asked', '0', 'clients', '0', 'blocks', '0', 'created', word(args.created), unpack(written_budget(budget)))
  note_beginning(asker.services)
  return {'done'}
end

-- KEYS  account, acts, receipts, questions
-- The account stays, and no budget is behind it any more: it is in a format that no release takes, so
-- that every function refuses it, that which would open or restore it, too.
local function forget_lineage(keys, args)
  local act, account = read_act(args), read_account(keys.account, 'the lineage')
  if not account then
    return {'unknown'}
  elseif account.seq > 0 or redis.call('EXISTS', keys.receipts, keys.questions) > 0 then
    return {'has-charged'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  write_act(keys.account, keys.acts, act)
  redis.call('HSET', keys.account, 'format', FORGOTTEN)
  return {'done'}
end

-- KEYS  account, acts, clients, groups, blocks, keys; the account and every other key of its own; the account of the client's
--       group, if it has one
-- ARGV  and the scope, client, group or block, and the name, budget, created, display; of a client its group or nothing, and
--       `key`, what `read_new_key` reads
local function add_account(keys, args)
  local act, budget, name = read_act(args), read_budget(args), word(args.name)
  local account, names = keys[word(args.id)], keys[args.scope .. 's']
  local key, others = args.key and read_new_key(args.key), {}
  for _, part in ipairs({':receipts', ':questions', ':requests', ':requests:old'}) do
    others[#others + 1] = rawget(keys, args.id .. part)
  end
  local lineage = read_account(keys.account, 'the lineage')
  if not lineage then
    check_unused('the lineage', {keys.acts, keys.clients, keys.groups, keys.blocks, keys.keys})
    return {'unknown-lineage'}
  end
  local listed, what = redis.call('HEXISTS', names, name) == 1, 'the account of ' .. name
  if read_account(account, what) then
    return {'exists'}
  end
  check_unused(what, others)
  if listed then
    damaged(what .. ' is lost')
  elseif key and redis.call('HEXISTS', keys.keys, key.digest) == 1 then
    return {'key-in-use'}
  elseif word(args.group) ~= '' and redis.call('HEXISTS', keys.groups, args.group) == 0 then
    return {'unknown-group'}
  elseif args.scope == 'block' and ACCEPTS[budget.accepts].counts_epsilon ~= lineage.counts_epsilon then
    return {'other-currency'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  write_act(keys.account, keys.acts, act)
  local fields = written_budget(budget)
  for _, field in ipairs({'created', 'display', 'group'}) do
    fields[#fields + 1], fields[#fields + 2] = field, word(args[field])
  end
  fields[#fields + 1], fields[#fields + 2] = 'revoked', '0'
  write_new(keys.account, names, account, args.scope, name, fields)
  if key then
    write_key(keys.keys, name, account, key)
  end
  return {'done'}
end

-- KEYS  account, acts, and the account.  ARGV  and budget
local function set_budget(keys, args)
  local act, budget, key = read_act(args), read_budget(args), keys[word(args.id)]
  local account = read_account(key, args.id == 'account' and 'the lineage' or 'the account of ' .. args.id)
  local lineage = read_account(keys.account, 'the lineage')
  if not account or not lineage then
    return {'unknown'}
  elseif (string.find(args.id, '^block:') or (args.id == 'account' and account.blocks > 0))
    and ACCEPTS[budget.accepts].counts_epsilon ~= lineage.counts_epsilon then
    return {'other-currency'}
  end
  local charged = account.spent > 0
  local stricter = (budget.accepts == 'gaussian' and account.accepts ~= 'gaussian')
    or (account.takes_claims and not ACCEPTS[budget.accepts].takes_claims)
    or account.counts_epsilon ~= ACCEPTS[budget.accepts].counts_epsilon -- what was spent would be of another unit
  if stricter and charged then
    return {'too-late'}
  elseif budget.coins < account.coined then
    return {'coins'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  local highest = charged and math.max(account.highest, account.limit) or 0
  local raised = redis.call('HGET', key, 'raised') or '0 ' .. text(highest)
  local times, settled = string.match(raised, '^(%d+) (%d+)$')
  times = stored(times, 'how often the limit of ' .. args.id .. ' was raised')
  write_act(keys.account, keys.acts, act)
  redis.call('HSET', key, 'highest', text(highest), unpack(written_budget(budget)))
  if charged and budget.limit > highest then
    redis.call('HSET', key, 'raised', text(times + 1) .. ' ' .. settled)
  end
  return {'done'}
end

-- KEYS  account, acts, groups, and the client's account, or a group's.  ARGV  and display, or of a client its group
-- What the members of a group know together is what the group has paid for. So a client who has asked anything belongs
-- to its group for good, or to none.
local function describe(keys, args)
  local act, key = read_act(args), keys[word(args.id)]
  local account = read_account(key, 'the account of ' .. args.id)
  if not account then
    return {'unknown'}
  elseif args.group and account.seq > 0 then
    return {'has-asked'}
  elseif args.group and args.group ~= '' and redis.call('HEXISTS', keys.groups, args.group) == 0 then
    return {'unknown-group'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  write_act(keys.account, keys.acts, act)
  local field = args.group and 'group' or 'display'
  redis.call('HSET', key, field, word(args[field]))
  return {'done'}
end

-- KEYS  account, acts, and the client's account
-- The right is taken away first: damaged acts, or a damaged account of the lineage, must not keep it alive. Replies
-- {'done'}, {'stale'} or {'unwritten', what kept the act from being written}.
local function revoke(keys, args)
  local act, key = read_act(args), keys[word(args.id)]
  if redis.call('HLEN', key) == 0 then
    return {'unknown'}
  end
  redis.call('HSET', key, 'revoked', '1')
  local ok, stale, line = attempt(is_stale, keys.account, act)
  if ok and stale then
    return {'stale'}
  elseif ok then
    ok, stale, line = attempt(write_act, keys.account, keys.acts, act)
  end
  return ok and {'done'} or {'unwritten', line}
end

-- KEYS  account, acts
-- ARGV  and unit, a column, or nothing for a record; lost, whether the unit may have been lost with a part of the store
-- A lineage has one privacy unit, that of its first model: what its accounts bound is said of that. What was charged
-- before any model named one is said to bound records.
local function settle_unit(keys, args)
  local act, unit = read_act(args), word(args.unit)
  local account = read_account(keys.account, 'the lineage')
  if not account then
    return {'unknown'}
  end
  local known = redis.call('HGET', keys.account, 'unit')
  local found = known or (account.seq > 0 and not args.lost and '' or unit)
  if found ~= unit then
    return {'other-unit', found}
  elseif known then
    return {'done'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  write_act(keys.account, keys.acts, act)
  redis.call('HSET', keys.account, 'unit', unit)
  return {'done'}
end

-- KEYS  account, acts.  Writes down what changed nothing here, as that the acts and receipts were exported.
local function note(keys, args)
  local act = read_act(args)
  if not read_account(keys.account, 'the lineage') then
    return {'unknown'}
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  write_act(keys.account, keys.acts, act)
  return {'done'}
end

-- KEYS  account, acts, keys; the client's account
-- ARGV  and name; `key`, the new one, if there is one; `ending`, which former keys end: all, none or a digest;
--       `seconds`, after how many
local function change_keys(keys, args)
  local act, account, which, seconds = read_act(args), keys[word(args.id)], word(args.ending), amount(args.seconds)
  local fields = redis.call('HMGET', account, 'limit', 'revoked')
  if not fields[1] then
    return {'unknown'}
  elseif fields[2] == '1' then
    return {'revoked'}
  end
  local new = args.key and read_new_key(args.key)
  if new and redis.call('HEXISTS', keys.keys, new.digest) == 1 then
    return {'key-in-use'}
  end
  local now, ending, gone = store_seconds(), {}, {}
  local owned, count = keys_of(account)
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
  elseif is_stale(keys.account, act) then
    return {'stale'}
  end
  write_act(keys.account, keys.acts, act)
  for _, digest in ipairs(gone) do
    redis.call('HDEL', account, 'k:' .. digest)
    redis.call('HDEL', keys.keys, digest)
  end
  ending[#ending + 1] = new
  for _, key in ipairs(ending) do
    write_key(keys.keys, word(args.name), account, key)
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

-- KEYS  keys; then the account of the client whom the caller expects, if any.  ARGV  id, its key; digest, scope
-- Replies the client's name, or nothing; then, of the account of that name, why it is refused, or nothing, and the
-- fields.
local function find_client(keys, args)
  local entry = redis.call('HGET', keys.keys, args.digest)
  if not entry then
    return {''}
  end
  local name = string.match(entry, '^%S+ %S+ (.+)$') or damaged('an API key cannot be read')
  if not args.id then
    return {name}
  end
  local refused = refuse_key(keys[args.id], args.digest, args.scope)
  return {name, refused and refused[1] or '', redis.call('HGETALL', keys[args.id])}
end

-- KEYS  a stream.  ARGV  after, the number above which; count, the most to return; newest_first
local function page(keys, args)
  if args.newest_first then
    return redis.call('XREVRANGE', keys[1], '+', '-', 'COUNT', args.count)
  end
  return redis.call('XRANGE', keys[1], text(amount(args.after) + 1), '+', 'COUNT', args.count)
end

-- KEYS  a client's index; receipts.  ARGV  as for `page`.  Replies the receipts that the index names.
local function page_of_client(keys, args)
  local found = {}
  for place, entry in ipairs(page(keys, args)) do
    local own, number = string.match(entry[1], '^(%d+)-(%d+)$')
    local id = number .. '-' .. own
    found[place] = redis.call('XRANGE', keys.receipts, id, id)[1] or damaged('a client\'s receipt is not there')
  end
  return found
end

-- KEYS  a hash, or a set.  ARGV  cursor.  Replies the next cursor and some of the fields and their values: of a set its
-- members, each with nothing behind it.
local function scan(keys, args)
  if redis.call('TYPE', keys[1]).ok ~= 'set' then
    return redis.call('HSCAN', keys[1], args.cursor, 'COUNT', SLICE)
  end
  local found, flat = redis.call('SSCAN', keys[1], args.cursor, 'COUNT', SLICE), {}
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
register_on_lineage('forget_lineage', EVEN_WHEN_FULL, forget_lineage)
register_on_lineage('add_account', {}, add_account)
register_on_lineage('set_budget', EVEN_WHEN_FULL, set_budget)
register_on_lineage('describe', {}, describe)
register_on_lineage('settle_unit', EVEN_WHEN_FULL, settle_unit)
register_on_lineage('note', EVEN_WHEN_FULL, note)
register_on_lineage('revoke', EVEN_WHEN_FULL, revoke)
register_on_lineage('change_keys', EVEN_WHEN_FULL, change_keys)
register_on_lineage('end_of_acts', {'no-writes'}, end_of_acts)
register_on_lineage('find_client', {'no-writes'}, find_client)
register_on_lineage('page', {'no-writes'}, page)
register_on_lineage('page_of_client', {'no-writes'}, page_of_client)
register_on_lineage('read', {'no-writes'}, read)
register_on_lineage('scan', {'no-writes'}, scan)
register_on_lineage('types', {'no-writes'}, types)
