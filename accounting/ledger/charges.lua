
-- charge and quote --------------------------------------------------------------------------------------------
-- KEYS  services; the lineage's account, tally, receipts, young rows, old rows, clients, API keys; then each client's
--       account, tally, receipts, young requests, old requests
-- ARGV  lineage, rows a generation holds, requests a generation holds, the head that hashes are foreseen from and its
--       number or nothing, 1 if nothing is to be decided should it be another, how many offers there are; for each
--       offer, which the requests share, the fields that `offer_of` reads; then for each request those that
--       `read_request` reads
-- charge replies to each {'charged', receipt number or 0, rows charged, packed answers, the hash before the
-- receipt, how both accounts stand now, the number of the receipt that the same request got before or nothing}, or
-- {'terms', model, mechanism, cost} for one that was sent before and was decided at other terms, or a refusal; quote
-- {'quoted', a letter for each row: new, paid or again}, then the refusal if any. Where the head is another, the reply
-- is {'stale', the newest receipt's hash, its number} for all, and nothing was decided: to ask again with hashes that
-- are foreseen from there costs a third of what `sha256` here does for a call of ten requests.
--
-- A request that names the digest of an API key is decided only if that key is still its client's, has not expired and
-- is good for predictions: whose it is may be remembered by a service, and is looked at here, at the instant of the
-- charge.
--
-- A request that was sent before, with the same idempotency key and body, stays what it was then, though the model
-- or the price is another now: whoever asks hears the terms and asks again at these, with `answered_only`, which
-- charges nothing.

local FIRST_OFFER, OFFER_FIELDS, REQUEST_FIELDS = 11, 8, 6
local AT_ROW_IDS, AT_FORESEEN = 2, 4

local function read_lineage(keys)
  return {
    account = keys[2], tally = keys[3], receipts = keys[4], rows = keep_rows({young = keys[5], old = keys[6]}),
    clients = keys[7], api_keys = keys[8], name = 'the lineage', members = {}, offers = {},
  }
end

local function client_of(lineage, keys, place, name)
  local first = 5 * place + 4
  local client = lineage.members[place]
  if not client then
    if string.sub(keys[first] or '', -#name - 8) ~= ':client:' .. name then
      malformed('a request names no client') -- or its receipt would name another than who pays
    end
    client = {
      account = keys[first], tally = keys[first + 1], receipts = keys[first + 2], name = name,
      requests = {young = keys[first + 3], old = keys[first + 4]},
    }
    lineage.members[place] = client
  end
  if not client.requests.old or client.name ~= name then
    malformed('a request names no client')
  end
  return client
end

-- Returns who asks for what at which price: what a request has in common with others of its call, read once.
local function offer_of(lineage, keys, args, number)
  local offer = lineage.offers[number]
  if not offer then
    local at = FIRST_OFFER + OFFER_FIELDS * amount(number)
    if at + OFFER_FIELDS > lineage.first_request then
      malformed('a request names no offer')
    end
    offer = {
      client = client_of(lineage, keys, amount(args[at]), args[at + 1]),
      lineage = args[5], model = args[at + 2], mechanism = args[at + 3],
      cost = args[at + 4], kind = args[at + 5], price = amount(args[at + 6]), digest = args[at + 7],
    }
    lineage.offers[number] = offer
  end
  return offer
end

-- A request's last field says what few have: whether it is to be decided only if it is answered, by '1' or '0', and
-- then, with an idempotency key, 32 bytes of the body's digest and the key.
local function read_request(lineage, keys, args, at)
  local offer, others = offer_of(lineage, keys, args, args[at]), args[at + 5]
  local request = {
    offer = offer, client = offer.client, time = args[at + 1], ids = split_row_ids(args[at + AT_ROW_IDS]),
    terms = args[at + 3], foreseen = args[at + AT_FORESEEN], key = '',
    comes_first = at == lineage.first_request,
    foreseen_after = at == lineage.first_request and args[8] or args[at - REQUEST_FIELDS + AT_FORESEEN],
  }
  if others ~= '' then
    request.answered_only = string.sub(others, 1, 1) == '1'
    if #others > 1 then
      request.body_digest, request.key = string.sub(others, 2, 33), string.sub(others, 34)
      if request.key == '' then
        malformed("a body's digest must have 32 bytes, and a key behind it")
      end
    end
  end
  return request
end

local function read_lineage_account(lineage)
  if not lineage.state then
    lineage.state = read_account(lineage.account, lineage.name)
    if not lineage.state then
      check_unused(lineage.name, {lineage.tally, lineage.receipts, lineage.rows.young, lineage.clients})
      return nil
    end
    lineage.rows.epoch = lineage.state.epoch
  end
  return lineage.state
end

local function read_client_account(lineage, client)
  if not client.state then
    client.state = read_account(client.account, 'the account of ' .. client.name)
    if not client.state then
      check_unused('the account of ' .. client.name, {client.tally, client.receipts})
      if redis.call('SISMEMBER', lineage.clients, client.name) == 1 then
        damaged('the account of ' .. client.name .. ' is lost')
      end
    end
  end
  return client.state
end

-- What an idempotency key stands for: 32 bytes of its body's digest, its receipt's number or 0, ':' and the model,
-- mechanism and cost that it was decided at, behind their lengths. Without what follows the digest (as an older
-- version wrote it) the terms are taken to be those of now.
local function terms_of(request)
  local offer = request.offer
  return struct.pack('>I4', #offer.model) .. offer.model .. struct.pack('>I4', #offer.mechanism)
    .. offer.mechanism .. offer.cost
end

local function split_terms(packed)
  local function part(at)
    local length, first = struct.unpack('>I4', packed, at)
    return string.sub(packed, first, first + length - 1), first + length
  end
  local model, at = part(1)
  local mechanism, rest = part(at)
  return {'terms', model, mechanism, string.sub(packed, rest)}
end

-- Returns the number of the receipt of the same request's first coming, nil if it never came; or nil and a reply.
local function recall(request)
  if request.key == '' then
    return nil
  end
  local requests = request.client.requests
  local entry = redis.call('HGET', requests.young, request.key) or redis.call('HGET', requests.old, request.key)
  if not entry then
    return nil
  elseif string.sub(entry, 1, 32) ~= request.body_digest then
    return nil, {'conflict'}
  elseif #entry == 32 then
    return '0'
  end
  local colon = string.find(entry, ':', 33, true)
  if not colon or not whole(string.sub(entry, 33, colon - 1)) then
    damaged('what an idempotency key of ' .. request.client.name .. ' stands for')
  end
  local terms = string.sub(entry, colon + 1)
  if terms ~= terms_of(request) then
    return nil, split_terms(terms)
  end
  return string.sub(entry, 33, colon - 1)
end

local function remember(request, number, capacity)
  make_room(request.client.requests, 1, capacity)
  redis.call('HSET', request.client.requests.young, request.key,
    request.body_digest .. number .. ':' .. terms_of(request))
  request.client.requests.held = request.client.requests.held + 1
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

local function refuse_revoked(account, name)
  if account.revoked == '0' then
    return nil
  end
  return account.revoked == '1' and {'revoked'} or damaged('the account of ' .. name)
end

-- Returns the refusal of the API key that the request came with, or nil; a key that is good is looked at once a call.
local function refuse_its_key(lineage, request)
  local client, digest = request.client, request.offer.digest
  if client.digest == digest then
    return nil
  end
  local refused = refuse_key(lineage.api_keys, digest, client.name, 'predict')
  client.digest = not refused and digest or nil
  return refused
end

-- Returns nothing for a request that may be decided, having read who pays; or the refusal.
local function admit(lineage, request)
  if not read_lineage_account(lineage) then
    return {'unknown-lineage'}
  end
  local refused = refuse_its_key(lineage, request)
  if refused then
    return refused
  end
  local account = read_client_account(lineage, request.client)
  if not account then
    return {'unknown-client'}
  end
  return refuse_revoked(account, request.client.name)
end

local function refuse_for(lineage, request, fresh)
  if fresh == 0 then
    return nil
  end
  local offer = request.offer
  local total = offer.price * fresh
  return refusal('client', request.client.state, offer, total) or refusal('lineage', lineage.state, offer, total)
end

-- Returns the ids never charged, each once, the answers that there are, packed with their positions, a letter for
-- each row, whether every row is answered, and whether none of them was known.
local function look_up(rows, ids)
  local fresh, answers, letters, seen, known = {}, {}, {}, {}, false
  read_rows(rows, ids)
  for position, id in ipairs(ids) do
    local entry = find_row(rows, id)
    if entry then
      letters[position], known = 'p', true
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
  return fresh, table.concat(answers), letters, #answers == #ids, not known
end

-- The caller may foresee its receipt's hash, which it computes a hundred times faster than `sha256` here, taking it
-- that the receipts before it in the call come as foreseen, too, and that no row of the request is known. It is taken
-- if that came to pass. Of the head that the first one comes after the number is looked at as well: who shares heads
-- with others may have read half of one.
local function hash_of_next(account, request, rows, all_new)
  local head = request.comes_first and account.head .. text(account.seq) or account.head
  if all_new and #request.foreseen == 32 and request.foreseen_after == head then
    return request.foreseen
  end
  return receipt_hash(account.head, request.terms, account.seq + 1, rows)
end

-- Returns the reply to a caller who foresaw hashes from another head than the newest and wants to hear of that. What
-- cannot be read of the lineage is left to its requests to say.
local function refuse_stale(lineage, expected)
  local ok, state = attempt(read_lineage_account, lineage)
  if ok and state and state.head .. text(state.seq) ~= expected then
    return {'stale', state.head, text(state.seq)}
  end
  return nil
end

-- Writes what the charges so far cost all accounts, and returns whether there were any in this call.
local function write_payments(lineage)
  for _, client in pairs(lineage.members) do
    if client.unwritten then
      write_books(client)
    end
  end
  if lineage.unwritten then
    write_books(lineage)
    lineage.charged = true
  end
  return lineage.charged
end

local function write_charge(lineage, request, fresh, all_new, capacity)
  if lacks_room(lineage.rows, #fresh, capacity) then
    check_books(lineage, request.client, request.offer, #fresh)
    write_payments(lineage) -- for making room marks rows
    make_room(lineage.rows, #fresh, capacity) -- first: if the store refuses it, nobody pays for rows that go unmarked
  end
  local hash = hash_of_next(lineage.state, request, #fresh, all_new)
  local number = write_receipt(lineage, request.client, request.offer, #fresh, request.time, hash)
  local entry = CHARGED .. lineage.state.epoch .. ':' .. number
  for _, id in ipairs(fresh) do
    lineage.rows.aged[id] = nil
    put_row(lineage.rows, id, entry)
  end
  lineage.rows.held = lineage.rows.held + #fresh
  return number
end

-- How both accounts stand: what the client has spent, its limit, what it accepts, its delta; what the lineage has
-- spent, its limit.
local function standing(lineage, client)
  local own, whole = client.state, lineage.state
  if not client.said then
    client.said = ' ' .. text(own.limit) .. ' ' .. own.accepts .. ' ' .. own.delta .. ' '
    lineage.said = ' ' .. text(whole.limit)
  end
  return text(own.spent) .. client.said .. text(whole.spent) .. lineage.said
end

-- Tells whether a request that came before cannot have what it bought: at other terms, no answer can be drawn at these
-- any more; and of rows that were forgotten, or charged in an earlier epoch, another would be a second charge for it.
local function is_cut_off(request, earlier, fresh, answered)
  return (request.answered_only and not answered) or (earlier and #fresh > 0)
end

local function charge_request(lineage, capacities, keys, args, at)
  local request = read_request(lineage, keys, args, at)
  local earlier, reply = nil, admit(lineage, request)
  if not reply then
    earlier, reply = recall(request)
  end
  if reply then
    return reply, false
  end
  local fresh, answers, _, answered, all_new = look_up(lineage.rows, request.ids)
  if is_cut_off(request, earlier, fresh, answered) then
    return {'unanswered'}, false
  end
  local refused = refuse_for(lineage, request, #fresh)
  if refused then
    return refused, false
  end
  local number, head, wrote = '0', lineage.state.head, #fresh > 0
  if wrote then
    number = write_charge(lineage, request, fresh, all_new, capacities.rows)
  end
  if request.key ~= '' and not earlier then
    remember(request, number, capacities.requests)
    wrote = true
  end
  -- A replay counts as a write of whoever sends it on: it must not be on its way before it is durable.
  local reply = {'charged', number, text(#fresh), answers, head, standing(lineage, request.client), earlier}
  return reply, wrote or answers ~= ''
end

-- Writes what the charges of a call changed together. Whichever write is the last that succeeds, nothing is answered
-- that was not paid for, and nothing more is charged than the budgets allow:
--   * before the rows nothing can be answered, for they are as they were before the call;
--   * with rows, the lineage and all clients have paid for every one, so that what is answered is counted;
--   * before the chain the receipts are more than the lineage counts, so that it takes no charge, whatever is spent.
local function write_charges(lineage)
  local charged = write_payments(lineage)
  write_rows(lineage.rows)
  if charged then
    write_chain(lineage)
  end
end

-- Decides on each request for itself: one that cannot be read, or whose client's keys cannot be, fails alone.
local function decide_each(keys, args, decide)
  local replies, lineage, wrote = {}, read_lineage(keys), false
  local first = FIRST_OFFER + OFFER_FIELDS * amount(args[FIRST_OFFER - 1])
  if first > #args + 1 or (#args - first + 1) % REQUEST_FIELDS ~= 0 then
    malformed('requests must come whole')
  end
  lineage.first_request = first
  local capacities = {rows = amount(args[6]), requests = amount(args[7])}
  local stale = args[9] == '1' and refuse_stale(lineage, args[8])
  if stale then
    return stale, false
  end
  foresee_rows(lineage.rows, args, first + AT_ROW_IDS, REQUEST_FIELDS)
  for at = first, #args, REQUEST_FIELDS do
    local ok, reply, detail = attempt(decide, lineage, capacities, keys, args, at)
    if ok then
      wrote = wrote or detail
    else
      reply = {reply, detail}
    end
    replies[#replies + 1] = reply
  end
  write_charges(lineage)
  return replies, wrote
end

local function charge(keys, args)
  return decide_each(keys, args, charge_request)
end

local function quote_request(lineage, _, keys, args, at)
  local request = read_request(lineage, keys, args, at)
  local earlier, reply = nil, admit(lineage, request)
  if not reply then
    earlier, reply = recall(request)
  end
  if reply then
    return reply, false
  end
  local fresh, _, letters, answered = look_up(lineage.rows, request.ids)
  if is_cut_off(request, earlier, fresh, answered) then
    return {'unanswered'}, false
  end
  return {'quoted', table.concat(letters), refuse_for(lineage, request, #fresh)}, false
end

local function quote(keys, args)
  return decide_each(keys, args, quote_request)
end

-- settle ----------------------------------------------------------------------------------------------------
-- KEYS  services; the lineage's account, young rows, old rows
-- ARGV  for each settlement: row ids, packed; their answers, packed
-- A settlement's reply is {'settled', packed answers} with the rows where an earlier answer stands, or
-- {'uncharged', position} with the first row that is not paid for, and then nothing of it is stored.

local function settle_rows(rows, packed_ids, packed_answers)
  local ids, answers = split_row_ids(packed_ids), split_answers(packed_answers)
  if #answers ~= #ids then
    malformed('each row id needs one answer')
  end
  local stored, standing, entries = {}, {}, {}
  read_rows(rows, ids)
  for position, id in ipairs(ids) do
    local entry = find_row(rows, id)
    if not entry then
      return {'uncharged', text(position)}
    end
    entries[position] = entry
    local earlier = stored[id] or answer_of(entry)
    if earlier then
      standing[#standing + 1] = pack_answer(position, earlier)
    else
      stored[id] = answers[position]
    end
  end
  for position, id in ipairs(ids) do
    if stored[id] then
      put_row(rows, id, ANSWERED .. after_colon(entries[position]) .. ':' .. stored[id])
      stored[id] = nil
    end
  end
  return {'settled', table.concat(standing)}
end

local function settle(keys, args)
  if #args % 2 ~= 0 then
    malformed('settlements must come whole')
  end
  local state = read_account(keys[2], 'the lineage')
  local epoch = state and state.epoch or damaged('the lineage is lost')
  local rows = keep_rows({young = keys[3], old = keys[4], epoch = epoch})
  local replies = {}
  foresee_rows(rows, args, 5, 2)
  for at = 5, #args, 2 do
    local ok, reply, line = attempt(settle_rows, rows, args[at], args[at + 1])
    replies[#replies + 1] = ok and reply or {reply, line}
  end
  write_rows(rows)
  return replies, true
end

register('charge', {}, charge)
register('quote', {'no-writes'}, quote)
register('settle', {}, settle)
