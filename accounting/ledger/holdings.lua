
-- Holdings --------------------------------------------------------------------------------------------------
-- A release that is paid for once consists of steps, each finer than the one before and each a private release of
-- its own with a price of its own. Whoever holds a step has paid for it, for good: `held` of the lineage and of each
-- client is a hash from a step's id to the number of the receipt that paid for it first.
--
-- A client pays for the steps that it does not hold, the lineage for those that nobody held before: its account pays
-- for the finest that anyone holds, whoever else holds it. Both pay or neither. A step is never forgotten, so it is
-- never charged twice to anyone.
--
--   the hash of a step's receipt = SHA-256(hash before, SHA-256 of its terms, number, rows, the step's id, and a
--                                  byte: 1 if the lineage had paid for it before, 0 if this receipt charged it too)
--   a step's id                  = SHA-256("dpserve step", the id of the step before it or the release's, and model and
--                                  cost, each behind its length), so that no receipt pays for a step at another cost

local STEP_FIELDS = 7

local function read_steps(args, first)
  local steps = {}
  if args[first] == nil or (#args - first + 1) % STEP_FIELDS ~= 0 then
    malformed('steps must come whole')
  end
  for at = first, #args, STEP_FIELDS do
    if #args[at] ~= 32 or #args[at + 1] ~= 32 or #args[at + 6] ~= 32 then
      malformed("a step's id, what it comes after and the digest of its terms must have 32 bytes")
    end
    steps[#steps + 1] = {
      id = args[at], after = args[at + 1], cost = args[at + 2], kind = args[at + 3], price = amount(args[at + 4]),
      coin = args[at + 5] == '1', terms = args[at + 6],
    }
  end
  return steps
end

-- `least_delta`: what the delta of an account must be for each picorho of its limit, to pay for coins.
-- An account counts the steps that it holds, so that what is held cannot get lost unseen and be charged again.
local function read_holder(account, tally, receipts, held, name)
  local holder = {account = account, tally = tally, receipts = receipts, held = held, name = name}
  holder.state = read_account(account, 'the account of ' .. name)
  if not holder.state then
    check_unused('the account of ' .. name, {tally, receipts, held})
    return holder
  end
  local fields = redis.call('HMGET', account, 'delta', 'held')
  holder.delta = tonumber(fields[1]) or 0
  holder.steps = redis.call('HLEN', held) -- which fails, before anything is written, if it is no hash
  if fields[2] and stored_amount(fields[2], 'the account of ' .. name) ~= holder.steps then
    damaged('what ' .. name .. ' holds is not as much as its account counts')
  end
  return holder
end

local function lacks(holder, step)
  return redis.call('HEXISTS', holder.held, step.id) == 0
end

-- Returns a refusal of the steps that this account would pay for, or nil.
local function refuse_steps(scope, holder, steps, least_delta)
  local total = 0
  for _, step in ipairs(steps) do
    total = total + step.price
    local coins_fit = not step.coin or holder.state.limit * least_delta <= holder.delta
    local refused = refusal(scope, holder.state, step, 0)
    if not coins_fit or (refused and refused[1] == 'not-accepted') then
      return {'not-accepted', scope, step.cost}
    end
  end
  if total > 0 and holder.state.spent + total > holder.state.limit then
    return {'exhausted', scope, text(total), text(holder.state.spent), text(holder.state.limit)}
  end
  return nil
end

-- KEYS  services; the lineage's account, tally, receipts, held; the client's account, tally, receipts, held, young
--       requests, old requests, and the lineage's clients and API keys, all of them absent where the owner holds
-- ARGV  lineage, client or nothing for the owner, model, mechanism, time, idempotency key, body digest, requests a
--       generation holds, least delta for each picorho of a limit, digest of the API key that the request came with or
--       nothing; then for each step what `read_steps` reads
local function read_hold(keys, args)
  local hold = {
    charged = {lineage = args[5], model = args[7], mechanism = args[8], time = args[9]},
    name = args[6], key = args[10], body_digest = args[11], capacity = amount(args[12]),
    least_delta = tonumber(args[13]), steps = read_steps(args, 15),
    lineage = read_holder(keys[2], keys[3], keys[4], keys[5], 'the lineage'),
  }
  if not hold.lineage.state then
    return nil, {'unknown-lineage'}
  end
  if hold.name == '' then
    return hold
  end
  hold.client = read_holder(keys[6], keys[7], keys[8], keys[9], hold.name)
  hold.requests = {young = keys[10], old = keys[11]}
  local state = hold.client.state
  if not state then
    if redis.call('SISMEMBER', keys[12], hold.name) == 1 then
      damaged('the account of ' .. hold.name .. ' is lost')
    end
    return nil, {'unknown-client'}
  end
  local refused = refuse_key(keys[13], args[14], hold.name, 'predict') or refuse_revoked(state, hold.name)
  if refused then
    return nil, refused
  end
  if hold.key ~= '' then
    local requests = hold.requests
    hold.remembered = redis.call('HGET', requests.young, hold.key) or redis.call('HGET', requests.old, hold.key)
    if hold.remembered and string.sub(hold.remembered, 1, 32) ~= hold.body_digest then
      return nil, {'conflict'}
    end
  end
  return hold
end

-- What the idempotency key of a hold stands for: its body's digest, its receipt's number or 0, ':', and model,
-- mechanism and the last step's cost, as a request for rows has it. A client that names no tier gets the finest that
-- it holds, which may be another when it asks again: what was decided for the first request stands.
local function hold_terms(asked)
  local charged = asked.charged
  return struct.pack('>I4', #charged.model) .. charged.model .. struct.pack('>I4', #charged.mechanism)
    .. charged.mechanism
end

-- Returns nothing, or the reply to a request that came before and was decided otherwise.
local function decided_before(asked)
  local remembered = asked.remembered
  if not remembered or #remembered == 32 then
    return nil
  end
  local colon = string.find(remembered, ':', 33, true)
  asked.earlier = colon and string.sub(remembered, 33, colon - 1)
  if not colon or not whole(asked.earlier) then
    damaged('what an idempotency key of ' .. asked.name .. ' stands for')
  end
  local terms = string.sub(remembered, colon + 1)
  if string.sub(terms, 1, #hold_terms(asked)) == hold_terms(asked) then
    return nil
  end
  local length, first = struct.unpack('>I4', terms)
  if string.sub(terms, first, first + length - 1) ~= asked.charged.model then
    return {'conflict'}
  end
  length, first = struct.unpack('>I4', terms, first + length)
  return {'decided', string.sub(terms, first, first + length - 1)}
end

-- Returns the steps that the client, or the owner, would pay for and those that the lineage would, and a letter for
-- each step: held, shared (the lineage has paid for it) or new.
local function weigh(hold)
  local own, whole_lineage, letters = {}, {}, {}
  for position, step in ipairs(hold.steps) do
    local lineage_lacks = lacks(hold.lineage, step)
    local client_lacks = lineage_lacks
    if hold.client then
      client_lacks = lacks(hold.client, step)
      if lineage_lacks and not client_lacks then
        damaged('a client holds a step that its lineage has not paid for')
      end
    end
    letters[position] = not client_lacks and 'h' or (lineage_lacks and 'n' or 's')
    step.shared = not lineage_lacks
    if client_lacks then
      own[#own + 1] = step
    end
    if lineage_lacks then
      whole_lineage[#whole_lineage + 1] = step
    end
  end
  local refused = hold.client and refuse_steps('client', hold.client, own, hold.least_delta) or nil
  refused = refused or refuse_steps('lineage', hold.lineage, whole_lineage, hold.least_delta)
  return own, table.concat(letters), refused
end

local function check_step_id(charged, step)
  local id = sha256('dpserve step' .. step.after .. eight_bytes(#charged.model) .. charged.model
    .. eight_bytes(#step.cost) .. step.cost)
  if id ~= step.id then
    malformed('a step must have the id that its model and its cost give')
  end
end

-- Reads what `write_step` is going to write for this holder, so that it cannot fail half-way.
local function check_step(holder, step)
  check_tally(holder, step.cost)
  if holder.state.spent + step.price > LARGEST then
    malformed('a charge takes an account past 2^53 - 1')
  end
end

local function pay_for_step(holder, step, number)
  holder.steps = holder.steps + 1
  pay(holder, step, 1)
  write_books(holder, 'held', text(holder.steps))
  redis.call('HSET', holder.held, step.id, number)
end

local function step_hash(head, step, number)
  return sha256(head .. step.terms .. eight_bytes(number) .. eight_bytes(1) .. step.id
    .. (step.shared and '\1' or '\0'))
end

-- Charges whoever lacks the step and writes its receipt; asks nothing. Fails before its first write or not at all.
-- Returns number, hash before, hash.
local function write_step(lineage, client, charged, step)
  local state = lineage.state
  local number, previous = state.seq + 1, state.head
  local hash = step_hash(previous, step, number)
  local id = text(number) .. '-0'
  check_receipts(lineage)
  check_step(lineage, step)
  if client then
    check_step(client, step)
    check_index(client)
  end
  local appended = redis.pcall('XADD', lineage.receipts, id,
    'lineage', charged.lineage, 'client', client and client.name or '', 'model', charged.model,
    'mechanism', charged.mechanism, 'cost', step.cost, 'price', text(step.price), 'rows', '1',
    'total', text(step.price), 'time', charged.time, 'previous', previous, 'hash', hash,
    'held', step.id, 'shared', step.shared and '1' or '0', 'after', step.after)
  check_appended(appended)
  state.seq, state.head = number, hash
  if not step.shared then
    pay_for_step(lineage, step, text(number))
  end
  if client then
    pay_for_step(client, step, text(number))
    redis.pcall('XADD', client.receipts, id, 'lineage', charged.lineage) -- a mere index, as in `write_receipt`
  end
  write_chain(lineage) -- after what it stands for, as in `write_charges`
  return text(number), previous, hash
end

-- Replies {'held', a letter for each step, the number of the receipt that the same request got before or 0, then
-- number, hash before and hash of each receipt}; {'decided', mechanism} for a request that came before and was decided
-- for another mechanism; or a refusal.
local function hold(keys, args)
  local asked, refused = read_hold(keys, args)
  if refused then
    return refused, false
  end
  refused = decided_before(asked)
  if refused then
    return refused, false
  end
  local own, letters
  own, letters, refused = weigh(asked)
  if refused then
    return refused, false
  end
  for _, step in ipairs(own) do
    check_step_id(asked.charged, step)
    check_step(asked.lineage, step)
    if asked.client then
      check_step(asked.client, step)
    end
  end
  local reply, number = {'held', letters, asked.earlier or '0'}, '0'
  for _, step in ipairs(own) do
    number = text(asked.lineage.state.seq + 1)
    for _, part in ipairs({write_step(asked.lineage, asked.client, asked.charged, step)}) do
      reply[#reply + 1] = part
    end
  end
  if asked.client and asked.key ~= '' and not asked.remembered then
    make_room(asked.requests, 1, asked.capacity)
    redis.call('HSET', asked.requests.young, asked.key,
      asked.body_digest .. number .. ':' .. hold_terms(asked) .. asked.steps[#asked.steps].cost)
  end
  -- That a step is held counts as a write of whoever answers on its strength: it must be durable before.
  return reply, true
end

-- Replies {'quoted', a letter for each step, then the refusal if any}. Changes nothing.
local function quote_hold(keys, args)
  local asked, refused = read_hold(keys, args)
  if refused then
    return refused
  end
  local _, letters, unpaid = weigh(asked)
  return {'quoted', letters, unpaid}
end

-- KEYS  services; the lineage's account, tally, receipts, held, applied, clients; the client's account, tally,
--       receipts, held, all of them absent where the owner held
-- ARGV  lineage, client, model, mechanism, time, number, hash, shared; then the step
-- Puts the receipt of a step back, as `apply` does a receipt. What is held already is not charged again.
local function apply_held(keys, args)
  local lineage = read_holder(keys[2], keys[3], keys[4], keys[5], 'the lineage')
  if not lineage.state then
    return {'unknown-lineage'}
  end
  local charged = {lineage = args[5], model = args[7], mechanism = args[8], time = args[9]}
  local id, hash, step = text(amount(args[10])) .. '-0', args[11], read_steps(args, 13)[1]
  check_step_id(charged, step)
  local found = redis.call('XRANGE', lineage.receipts, id, id)
  if (found[1] and found[1][2][22] == hash) or redis.call('SISMEMBER', keys[6], hash) == 1 then
    return {'there'}
  end
  local client = nil
  if args[6] ~= '' then
    bring_back(lineage, {account = keys[8], name = args[6]}, keys[7], charged.time)
    client = read_holder(keys[8], keys[9], keys[10], keys[11], args[6])
  end
  step.shared = not lacks(lineage, step)
  if not lacks(client or lineage, step) then
    redis.call('SADD', keys[6], hash)
    return {'there'}
  end
  local _, _, written = write_step(lineage, client, charged, step)
  if written ~= hash then
    redis.call('SADD', keys[6], hash)
  end
  return {written == hash and 'appended' or 'again'}
end

register('hold', {}, hold)
register('quote_hold', {'no-writes'}, quote_hold)
register('apply_held', {}, apply_held)
