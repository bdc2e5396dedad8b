
-- Rows ------------------------------------------------------------------------------------------------------
-- A row is '?', the lineage's epoch, ':' and its receipt's number once charged; '=' with that number, ':' and
-- the bytes once answered. Rows and answers travel packed, thousands in one string: row ids as they are, 32
-- bytes each; an answer behind its length, and in replies behind its row's position, as big-endian numbers of
-- 4 bytes.
--
-- Rows are remembered in two generations. When the young one is full the old one is forgotten and the young one
-- becomes old. A forgotten row is as one that was never asked for: it is charged again.
--
-- The epoch moves on when the ledger was found to have lost writes. A row charged in an earlier epoch may have
-- been answered by what was lost, so computing it again would be a second release: it too is charged again.

local ROW_ID_BYTES = 32
local CHARGED, ANSWERED = '?', '='

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

-- Returns what is known of each id, false where nothing is, and which generation knows it.
local function find_rows(rows, ids)
  local entries, places = get_rows(rows.young, ids), {}
  local old = redis.call('EXISTS', rows.old) == 1 and get_rows(rows.old, ids) or {}
  for position in ipairs(ids) do
    places[position] = rows.young
    if not entries[position] and old[position] then
      entries[position], places[position] = old[position], rows.old
    end
    local entry = entries[position]
    if entry and string.sub(entry, 1, 1) == CHARGED
      and string.sub(entry, 2, string.find(entry, ':', 1, true) - 1) ~= rows.epoch then
      entries[position] = false
    end
  end
  return entries, places
end

local function make_room(generations, fresh, capacity)
  local held = redis.call('HLEN', generations.young)
  if held > 0 and held + fresh > capacity then
    redis.call('UNLINK', generations.old)
    redis.call('RENAME', generations.young, generations.old)
  end
end

local function after_colon(entry)
  return string.sub(entry, string.find(entry, ':', 1, true) + 1)
end

local function answer_of(entry)
  if string.sub(entry, 1, 1) == ANSWERED then
    return after_colon(entry)
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

-- charge and quote --------------------------------------------------------------------------------------------
-- KEYS  services; the lineage's account, tally, receipts, young rows, old rows; then each client's account,
--       tally, receipts, young requests, old requests
-- ARGV  lineage, rows a generation holds, requests a generation holds; then for each request the fields that
--       `read_request` reads
-- charge replies to each {'charged', receipt number or 0, rows charged, packed answers, the hash before the
-- receipt} or a refusal; quote {'quoted', a letter for each row: new, paid or again}, then the refusal if any.

local REQUEST_FIELDS = 13

local function read_lineage(keys)
  return {account = keys[2], tally = keys[3], receipts = keys[4], rows = {young = keys[5], old = keys[6]}}
end

local function read_request(keys, args, at)
  local first = 5 * amount(args[at]) + 2
  return {
    client = {
      account = keys[first], tally = keys[first + 1], receipts = keys[first + 2], name = args[at + 1],
      requests = {young = keys[first + 3], old = keys[first + 4]},
    },
    lineage = args[5], model = args[at + 2], mechanism = args[at + 3],
    cost = args[at + 4], kind = args[at + 5], price = amount(args[at + 6]), time = args[at + 7],
    idempotency_key = args[at + 8], body_digest = args[at + 9], ids = split_row_ids(args[at + 10]),
    terms = args[at + 11], foreseen = args[at + 12],
  }
end

local function read_requests(keys, args)
  local requests = {}
  for at = 8, #args, REQUEST_FIELDS do
    requests[#requests + 1] = read_request(keys, args, at)
  end
  return requests
end

local function read_account(key)
  local fields = redis.call('HMGET', key, 'limit', 'spent', 'accepts', 'revoked', 'seq', 'head', 'epoch')
  if not fields[1] then
    return nil
  end
  return {
    limit = amount(fields[1]),
    spent = amount(fields[2]),
    accepts = fields[3],
    revoked = fields[4] == '1',
    seq = amount(fields[5] or '0'),
    head = fields[6] or GENESIS,
    epoch = fields[7] or '0',
  }
end

local function refusal(scope, account, request, total)
  if (account.accepts == 'gaussian' and request.kind ~= 'gaussian')
    or (account.accepts ~= 'unproven' and request.kind == 'unproven') then
    return {'not-accepted', scope}
  end
  if account.spent + total > account.limit then
    return {'exhausted', scope, text(total), text(account.spent), text(account.limit)}
  end
  return nil
end

-- Returns who pays, and what the client's idempotency key stood for before; or nil, nil and a refusal.
local function admit(lineage, request)
  local lineage_account = read_account(lineage.account)
  if not lineage_account then
    return nil, nil, {'unknown-lineage'}
  end
  local client_account = read_account(request.client.account)
  if not client_account then
    return nil, nil, {'unknown-client'}
  end
  if client_account.revoked then
    return nil, nil, {'revoked'}
  end
  local remembered = nil
  if request.idempotency_key ~= '' then
    local requests = request.client.requests
    remembered = redis.call('HGET', requests.young, request.idempotency_key)
      or redis.call('HGET', requests.old, request.idempotency_key)
    if remembered and remembered ~= request.body_digest then
      return nil, nil, {'conflict'}
    end
  end
  return {lineage = lineage_account, client = client_account}, remembered
end

local function refuse_for(accounts, request, fresh)
  if fresh == 0 then
    return nil
  end
  local total = request.price * fresh
  return refusal('client', accounts.client, request, total) or refusal('lineage', accounts.lineage, request, total)
end

-- Returns the ids never charged, each once, the answers that there are, packed with their positions, and a
-- letter for each row.
local function look_up(rows, ids)
  local fresh, answers, letters, seen = {}, {}, {}, {}
  for position, entry in ipairs((find_rows(rows, ids))) do
    local id = ids[position]
    if entry then
      letters[position] = 'p'
      local answer = answer_of(entry)
      if answer then
        answers[#answers + 1] = pack_answer(position, answer)
      end
    elseif seen[id] then
      letters[position] = 'a'
    else
      seen[id] = true
      letters[position] = 'n'
      fresh[#fresh + 1] = id
    end
  end
  return fresh, table.concat(answers), table.concat(letters)
end

-- The caller may foresee its receipt's hash, which it computes a hundred times faster than `sha256` here: 32
-- bytes of the hash before it, 32 of its own, and its rows. What it foresaw is taken if it came to pass so.
local function hash_of_next(account, request, rows)
  local foreseen = request.foreseen
  if string.sub(foreseen, 1, 32) == account.head and string.sub(foreseen, 65) == text(rows) then
    return string.sub(foreseen, 33, 64)
  end
  return receipt_hash(account.head, request.terms, account.seq + 1, rows)
end

local function write_charge(lineage, account, request, fresh, capacity)
  request.rows = #fresh
  local number = account.seq + 1
  write_receipt(lineage, request.client, request, number, account.head, hash_of_next(account, request, #fresh))
  make_room(lineage.rows, #fresh, capacity)
  local fields = {}
  for _, id in ipairs(fresh) do
    fields[#fields + 1] = id
    fields[#fields + 1] = CHARGED .. account.epoch .. ':' .. text(number)
  end
  set_rows(lineage.rows.young, fields)
  return text(number)
end

local function charge_request(lineage, request, row_capacity, request_capacity)
  local accounts, remembered, refused = admit(lineage, request)
  if refused then
    return refused, false
  end
  lineage.rows.epoch = accounts.lineage.epoch
  local fresh, answers = look_up(lineage.rows, request.ids)
  refused = refuse_for(accounts, request, #fresh)
  if refused then
    return refused, false
  end
  local number, wrote = '0', #fresh > 0
  if wrote then
    number = write_charge(lineage, accounts.lineage, request, fresh, row_capacity)
  end
  if request.idempotency_key ~= '' and not remembered then
    make_room(request.client.requests, 1, request_capacity)
    redis.call('HSET', request.client.requests.young, request.idempotency_key, request.body_digest)
    wrote = true
  end
  -- A replay counts as a write of whoever sends it on: it must not be on its way before it is durable.
  return {'charged', number, text(#fresh), answers, accounts.lineage.head}, wrote or answers ~= ''
end

local function charge(keys, args)
  local replies, lineage, wrote = {}, read_lineage(keys), false
  for position, request in ipairs(read_requests(keys, args)) do
    local wrote_this
    replies[position], wrote_this = charge_request(lineage, request, amount(args[6]), amount(args[7]))
    wrote = wrote or wrote_this
  end
  return replies, wrote
end

local function quote(keys, args)
  local replies, lineage = {}, read_lineage(keys)
  for position, request in ipairs(read_requests(keys, args)) do
    local accounts, _, refused = admit(lineage, request)
    local reply = refused
    if accounts then
      lineage.rows.epoch = accounts.lineage.epoch
      local fresh, _, letters = look_up(lineage.rows, request.ids)
      reply = {'quoted', letters, refuse_for(accounts, request, #fresh)}
    end
    replies[position] = reply
  end
  return replies
end

-- settle ----------------------------------------------------------------------------------------------------
-- KEYS  services; the lineage's account, young rows, old rows
-- ARGV  for each settlement: row ids, packed; their answers, packed
-- A settlement's reply is {'settled', packed answers} with the rows where an earlier answer stands, or
-- {'uncharged', position} with the first row that is not paid for, and then nothing of it is stored.

local function settle_rows(rows, ids, answers)
  local stored, standing = {}, {}
  local fields = {[rows.young] = {}, [rows.old] = {}}
  local entries, places = find_rows(rows, ids)
  for position, id in ipairs(ids) do
    local entry = entries[position]
    if not entry then
      return {'uncharged', text(position)}
    end
    local earlier = stored[id] or answer_of(entry)
    if earlier then
      standing[#standing + 1] = pack_answer(position, earlier)
    else
      stored[id] = answers[position]
      local generation = fields[places[position]]
      generation[#generation + 1] = id
      generation[#generation + 1] = ANSWERED .. after_colon(entry) .. ':' .. answers[position]
    end
  end
  set_rows(rows.young, fields[rows.young])
  set_rows(rows.old, fields[rows.old])
  return {'settled', table.concat(standing)}
end

local function settle(keys, args)
  local settlements = {}
  for at = 5, #args, 2 do
    local ids, answers = split_row_ids(args[at]), split_answers(args[at + 1])
    if #answers ~= #ids then
      error('each row id needs one answer')
    end
    settlements[#settlements + 1] = {ids, answers}
  end
  local rows = {young = keys[3], old = keys[4], epoch = redis.call('HGET', keys[2], 'epoch') or '0'}
  local replies = {}
  for position, settlement in ipairs(settlements) do
    replies[position] = settle_rows(rows, settlement[1], settlement[2])
  end
  return replies, true
end

register('charge', {}, charge)
register('quote', {'no-writes'}, quote)
register('settle', {}, settle)
