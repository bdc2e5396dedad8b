#!lua name=dpserve

-- The ledger's arithmetic, run inside the store, where nothing can come between the check and the charge.
--
-- Promises
--   * A request is charged whole to both of its accounts, or refused and nothing at all is written.
--   * No account's `spent` ever passes its `limit`: spent + total <= limit is checked before every charge.
--   * A row is charged once. The first answer stored for it is its only answer.
--   * Every check of a request comes before its first write, and its first writes are the charges, so an
--     error inside the store can at worst leave a charge without an answer, never an answer without a charge.
--   * The time a charge takes does not depend on how many receipts or rows were written before it.
--
-- Amounts are whole numbers of picorho of at most 2^53 - 1. Lua's numbers are IEEE doubles, which hold these
-- exactly; a sum or product beyond 2^53 may be rounded, but rounding is monotone and every limit is below
-- 2^53, so what is over the limit stays over it.
--
-- Every function takes the library's version and a nonce as its first two arguments. A caller written for
-- another version is refused, and the nonce opens the reply, so that a reply can only be taken for its own call.

-- Rows and answers travel packed, thousands in one string: row ids as they are, 32 bytes each; an answer behind
-- its length, and in replies behind its row's position, as big-endian numbers of 4 bytes.

local VERSION = '1'
local LARGEST = 9007199254740991
local ROW_ID_BYTES = 32
local SLICE = 1000 -- Lua's stack holds about 8000 arguments

local CHARGED, ANSWERED = '?', '='

local function amount(text)
  local value = tonumber(text)
  if not value or value < 0 or value > LARGEST or value ~= math.floor(value) then
    error('an amount must be a whole number from 0 to 2^53 - 1')
  end
  return value
end

local function text(value)
  return string.format('%.0f', value)
end

local function read_account(key)
  local fields = redis.call('HMGET', key, 'limit', 'spent', 'accepts', 'revoked')
  if not fields[1] then
    return nil
  end
  return {
    limit = amount(fields[1]),
    spent = amount(fields[2]),
    accepts = fields[3],
    revoked = fields[4] == '1',
  }
end

-- Rows ------------------------------------------------------------------------------------------------------
-- A row is '?' and its receipt's number once charged, '=' with that number, ':' and the bytes once answered.

local function split_row_ids(packed)
  if #packed == 0 or #packed % ROW_ID_BYTES ~= 0 then
    error('row ids must come as whole ids of 32 bytes')
  end
  local ids = {}
  for first = 1, #packed, ROW_ID_BYTES do
    ids[#ids + 1] = string.sub(packed, first, first + ROW_ID_BYTES - 1)
  end
  return ids
end

local function get_rows(key, ids)
  local entries = {}
  for first = 1, #ids, SLICE do
    local last = math.min(first + SLICE - 1, #ids)
    for _, entry in ipairs(redis.call('HMGET', key, unpack(ids, first, last))) do
      entries[#entries + 1] = entry
    end
  end
  return entries
end

local function set_rows(key, fields)
  for first = 1, #fields, 2 * SLICE do
    redis.call('HSET', key, unpack(fields, first, math.min(first + 2 * SLICE - 1, #fields)))
  end
end

local function answer_of(entry)
  if string.sub(entry, 1, 1) == ANSWERED then
    return string.sub(entry, string.find(entry, ':', 1, true) + 1)
  end
  return nil
end

local function pack_answer(position, answer)
  return struct.pack('>I4I4', position, #answer) .. answer
end

local function split_answers(packed)
  local answers = {}
  local at = 1
  while at <= #packed do
    local length, first = struct.unpack('>I4', packed, at)
    if first + length - 1 > #packed then
      error('an answer is shorter than its length says')
    end
    answers[#answers + 1] = string.sub(packed, first, first + length - 1)
    at = first + length
  end
  return answers
end

-- Returns the ids never charged, each once, and the answers that there are, packed with their positions.
local function look_up(key, ids)
  local fresh, answers, seen = {}, {}, {}
  for position, entry in ipairs(get_rows(key, ids)) do
    local id = ids[position]
    if not entry then
      if not seen[id] then
        seen[id] = true
        fresh[#fresh + 1] = id
      end
    else
      local answer = answer_of(entry)
      if answer then
        answers[#answers + 1] = pack_answer(position, answer)
      end
    end
  end
  return fresh, table.concat(answers)
end

-- charge ----------------------------------------------------------------------------------------------------
-- KEYS  the lineage's account, tally, receipts, rows; then each client's account, tally, receipts, requests
-- ARGV  lineage; then for each request the fields that `read_request` reads
-- A request's reply is {'charged', receipt number or 0, rows charged, packed answers} or a refusal.

local REQUEST_FIELDS = 11

local function read_request(keys, args, at)
  local first = 4 * amount(args[at]) + 1
  return {
    account = keys[first], tally = keys[first + 1], receipts = keys[first + 2], requests = keys[first + 3],
    client = args[at + 1], model = args[at + 2], mechanism = args[at + 3],
    cost = args[at + 4], kind = args[at + 5], price = amount(args[at + 6]), time = args[at + 7],
    idempotency_key = args[at + 8], body_digest = args[at + 9], ids = split_row_ids(args[at + 10]),
  }
end

local function refusal(scope, account, request, total)
  if account.accepts == 'gaussian' and request.kind ~= 'gaussian' then
    return {'not-accepted', scope}
  end
  if account.spent + total > account.limit then
    return {'exhausted', scope, text(total), text(account.spent), text(account.limit)}
  end
  return nil
end

local function add_to_account(key, tally, request, releases)
  redis.call('HINCRBY', key, 'spent', text(request.price * releases))
  redis.call('HINCRBY', tally, request.cost, text(releases))
end

local function write_charge(keys, lineage, request, fresh)
  add_to_account(keys[1], keys[2], request, #fresh)
  add_to_account(request.account, request.tally, request, #fresh)
  local number = text(redis.call('HINCRBY', keys[1], 'seq', 1))
  redis.call('XADD', keys[3], number .. '-0',
    'lineage', lineage, 'client', request.client, 'model', request.model, 'mechanism', request.mechanism,
    'cost', request.cost, 'price', text(request.price), 'rows', text(#fresh),
    'total', text(request.price * #fresh), 'time', request.time)
  redis.call('XADD', request.receipts, number .. '-0', 'lineage', lineage)
  local fields = {}
  for _, id in ipairs(fresh) do
    fields[#fields + 1] = id
    fields[#fields + 1] = CHARGED .. number
  end
  set_rows(keys[4], fields)
  return number
end

local function charge_request(keys, lineage, request)
  local lineage_account = read_account(keys[1])
  if not lineage_account then
    return {'unknown-lineage'}
  end
  local client_account = read_account(request.account)
  if not client_account then
    return {'unknown-client'}
  end
  if client_account.revoked then
    return {'revoked'}
  end
  local remembered = nil
  if request.idempotency_key ~= '' then
    remembered = redis.call('HGET', request.requests, request.idempotency_key)
    if remembered and string.sub(remembered, 1, #request.body_digest) ~= request.body_digest then
      return {'conflict'}
    end
  end
  local fresh, answers = look_up(keys[4], request.ids)
  local number = '0'
  if #fresh > 0 then
    local total = request.price * #fresh
    local refused = refusal('client', client_account, request, total)
      or refusal('lineage', lineage_account, request, total)
    if refused then
      return refused
    end
    number = write_charge(keys, lineage, request, fresh)
  end
  if request.idempotency_key ~= '' and not remembered then
    redis.call('HSET', request.requests, request.idempotency_key, request.body_digest .. number)
  end
  return {'charged', number, text(#fresh), answers}
end

local function charge(keys, args)
  local requests = {}
  for at = 4, #args, REQUEST_FIELDS do
    requests[#requests + 1] = read_request(keys, args, at)
  end
  local replies = {}
  for position, request in ipairs(requests) do
    replies[position] = charge_request(keys, args[3], request)
  end
  return replies
end

-- settle ----------------------------------------------------------------------------------------------------
-- KEYS  the lineage's rows
-- ARGV  for each settlement: row ids, packed; their answers, packed
-- A settlement's reply is {'settled', packed answers} with the rows where an earlier answer stands, or
-- {'uncharged', position} with the first row that was never charged, and then nothing of it is stored.

local function settle_rows(key, ids, answers)
  local stored, standing, fields = {}, {}, {}
  for position, entry in ipairs(get_rows(key, ids)) do
    if not entry then
      return {'uncharged', text(position)}
    end
    local id = ids[position]
    local earlier = stored[id] or answer_of(entry)
    if earlier then
      standing[#standing + 1] = pack_answer(position, earlier)
    else
      stored[id] = answers[position]
      fields[#fields + 1] = id
      fields[#fields + 1] = ANSWERED .. string.sub(entry, 2) .. ':' .. answers[position]
    end
  end
  set_rows(key, fields)
  return {'settled', table.concat(standing)}
end

local function settle(keys, args)
  local settlements = {}
  for at = 3, #args, 2 do
    local ids, answers = split_row_ids(args[at]), split_answers(args[at + 1])
    if #answers ~= #ids then
      error('each row id needs one answer')
    end
    settlements[#settlements + 1] = {ids, answers}
  end
  local replies = {}
  for position, settlement in ipairs(settlements) do
    replies[position] = settle_rows(keys[1], settlement[1], settlement[2])
  end
  return replies
end

-- Accounts --------------------------------------------------------------------------------------------------

-- KEYS  the lineage's account.  ARGV  limit, accepts, delta, time
local function open_lineage(keys, args)
  if redis.call('EXISTS', keys[1]) == 1 then
    return {'exists'}
  end
  redis.call('HSET', keys[1], 'limit', text(amount(args[3])), 'spent', '0', 'accepts', args[4],
    'delta', args[5], 'created', args[6], 'seq', '0')
  return {'opened'}
end

-- KEYS  the lineage's account, clients, keys; the client's account
-- ARGV  limit, accepts, delta, time, client, key digest
local function add_client(keys, args)
  if redis.call('EXISTS', keys[1]) == 0 then
    return {'unknown-lineage'}
  end
  if redis.call('EXISTS', keys[4]) == 1 then
    return {'exists'}
  end
  if redis.call('HEXISTS', keys[3], args[8]) == 1 then
    return {'key-in-use'}
  end
  redis.call('HSET', keys[4], 'limit', text(amount(args[3])), 'spent', '0', 'accepts', args[4],
    'delta', args[5], 'created', args[6], 'revoked', '0', 'digest', args[8])
  redis.call('SADD', keys[2], args[7])
  redis.call('HSET', keys[3], args[8], args[7])
  return {'added'}
end

-- KEYS  an account, its tally.  ARGV  limit, accepts, delta
local function set_budget(keys, args)
  local account = read_account(keys[1])
  if not account then
    return {'unknown'}
  end
  if args[4] == 'gaussian' and account.accepts ~= 'gaussian' and redis.call('EXISTS', keys[2]) == 1 then
    return {'too-late'}
  end
  redis.call('HSET', keys[1], 'limit', text(amount(args[3])), 'accepts', args[4], 'delta', args[5])
  return {'set'}
end

-- KEYS  a client's account
local function revoke(keys)
  if redis.call('EXISTS', keys[1]) == 0 then
    return {'unknown-client'}
  end
  redis.call('HSET', keys[1], 'revoked', '1')
  return {'revoked'}
end

-- KEYS  the lineage's keys.  ARGV  key digest.  Replies the client's name, or nothing.
local function find_client(keys, args)
  return {redis.call('HGET', keys[1], args[3])}
end

-- KEYS  the lineage's clients
local function list_clients(keys)
  return redis.call('SMEMBERS', keys[1])
end

-- KEYS  receipts, of a lineage or of a client.  ARGV  first id, last id, the most to return
local function list_receipts(keys, args)
  return redis.call('XRANGE', keys[1], args[3], args[4], 'COUNT', args[5])
end

-- KEYS  an account, its tally.  Replies the account's fields and its tally, both empty where there is none.
local function read(keys)
  return {redis.call('HGETALL', keys[1]), redis.call('HGETALL', keys[2])}
end

-- Registration ----------------------------------------------------------------------------------------------

local function register(name, flags, run)
  redis.register_function{
    function_name = 'dpserve_' .. name,
    flags = flags,
    callback = function(keys, args)
      if args[1] ~= VERSION then
        return redis.error_reply('DPSERVEVERSION ' .. VERSION)
      end
      local reply = run(keys, args)
      table.insert(reply, 1, args[2])
      return reply
    end,
  }
end

register('charge', {}, charge)
register('settle', {}, settle)
register('open_lineage', {}, open_lineage)
register('add_client', {}, add_client)
register('set_budget', {}, set_budget)
register('revoke', {}, revoke)
register('find_client', {'no-writes'}, find_client)
register('list_clients', {'no-writes'}, list_clients)
register('list_receipts', {'no-writes'}, list_receipts)
register('read', {'no-writes'}, read)
