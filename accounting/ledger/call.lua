
-- A call of charge, apply or quote (`charge.lua`): who pays for what, and how it is sent.

-- A question is a digest of 16 bytes that the caller computed of everything that decides its answer. Several accounts
-- pay for a request, its chain: the client's, its group's if it has one, and the lineage's. Each holds what all those
-- within it may learn together, so whatever an account of the chain has paid for, the ones outside of it have, too (a
-- client belongs to its group before it asks anything, and for good). Who paid for a question first is written in the
-- lineage's `questions`, a hash from the digest to the numbers of the client and its group, 0 for the lineage alone; an
-- account that paid later has it in a set of its own. So:
--
--   the lineage has paid for a question                if it is in `questions`
--   a client, or a group, has paid for a question      if `questions` has its number for it, or it is in its set
--
-- and how many accounts of the chain a question is new to says which: so many from the innermost on.
--
-- The lineage itself only counts. Its blocks pay: the terms of each line name those that its model was trained on. A
-- record lies in one block, so what all models together tell of it is what its block's account paid for. The blocks are
-- no links of the chain but siblings at its end. A question is of one model, and so of the same blocks whenever it is
-- asked: they have paid for it exactly if the lineage has. The block without a name, '', has the limit, the spending and
-- the tally in the lineage's own hash, and is called the lineage where it refuses.
--
-- A request is made of lines, each of questions at the same terms. For a request for rows, or for a pay-once
-- model, there is one.
--
-- KEYS  account, receipts, questions, terms, clients, groups, blocks; and of each client `client:NAME`, with :receipts,
--       :questions, :requests and :requests:old, of each group `group:NAME` with :questions, and of each block `block:NAME`
-- ARGV  writes, how many of its writes the service knows of; covered, what an earlier call replied, or nothing; link, of
--       its chain; remembered, how many idempotency keys are kept; terms; payers, each a client, its group and the
--       digest of its API key, or nothing of these; questions, those of all lines one behind the other; and requests,
--       one behind the other: the number of its payer, time, body (a digest) and key (another) or '' and '', how many
--       lines it has, and for each the number of its terms and how many questions
--
-- charge replies {covered, a digit for each question, standings, and for each request four parts}: the number that the
-- same request got before or '', the place of how its accounts stand after the call, the lineage's and the client's
-- number of its first receipt or 0. The digit says how many accounts paid for the question, 0 also where it occurs
-- before in the request. A request that was not charged has its refusal, or {WORD, line} if it failed alone, as its
-- first part, and '' as the others. quote replies {'quoted', the refusal if any, how the accounts stand, the digits}.
--
-- Whoever answers a question relies on its having been paid for durably, and on noticing the loss of that: so a call
-- that charges nothing writes all the same, unless no receipt was written since the caller's newest write, which was
-- acknowledged to it. `covered` says so: what the store and the lineage were like after that write.
--
-- A service whose writes are not as many as it knows of is told {'stale'}, and nothing is decided: a call of its own
-- was done whose reply it did not get. One that does not know a client's group is told {'regroup', client, group, ...},
-- and nothing is decided either. Receipts of a service form a chain: the first of a call carries the link, a hash over
-- the link before and the hashes of the receipts of the service's calls before; the caller computes both.
--
-- `apply` is a charge of what was released before: it looks at no limit, no key and no right of the client's, and an
-- account may come out of it having spent more than its limit, which refuses it everything from then on.
--
-- A batch is of hundreds of requests, and each table that is made for one costs as much as a command: what requests have
-- in common is made once, and questions are numbers, their places in the call.

local DIGEST = 16

local function escaped(name)
  return (string.gsub(name, '[^%w_.~-]', function(byte)
    return string.format('%%%02X', string.byte(byte))
  end))
end

-- Returns an account of a call: two payers may be one client with two API keys.
local function account_of(call, scope, name)
  local id = scope .. ':' .. escaped(word(name))
  local account = call.accounts[id]
  if not account then
    local keys = call.keys
    account = {
      scope = scope, name = name, what = 'the account of ' .. name, key = keys[id], names = keys[scope .. 's'],
      added = {}, fresh = {}, requests = {}, kept = 0, prices = {},
    }
    if scope ~= 'block' then
      account.questions = keys[id .. ':questions']
    end
    if scope == 'client' then
      account.id, account.receipts = id, keys[id .. ':receipts']
    end
    call.accounts[id] = account
  end
  return account
end

local function read_payer(call, sent)
  local payer = {chain = {}, digest = sent.digest, group = sent.group or '', shares = {}}
  if sent.client then
    payer.client = account_of(call, 'client', sent.client)
    payer.chain[1] = payer.client
    if sent.group then
      payer.chain[2] = account_of(call, 'group', sent.group)
    end
  end
  payer.chain[#payer.chain + 1] = call.lineage
  return payer
end

-- Replaces the names of the blocks that pay at these terms by their accounts, each of which is there once.
local function read_blocks(call, terms)
  local accounts, pays = {}, {}
  for place, name in ipairs(type(terms.blocks) == 'table' and terms.blocks or malformed('terms name their blocks')) do
    local account = name == '' and call.lineage or account_of(call, 'block', name)
    if pays[account] then
      malformed('terms name a block once')
    end
    pays[account], accounts[place] = true, account
  end
  terms.pays = pays
  terms.blocks = #accounts > 0 and accounts or malformed('terms name a block')
end

local function check_terms(call, terms)
  word(terms.packed)
  word(terms.cost)
  terms.price, terms.times, terms.coins = amount(terms.price), amount(terms.times), amount(terms.coins)
  terms.pure = terms.pure and amount(terms.pure)
  read_blocks(call, terms)
end

local function split_digests(packed)
  if #word(packed) == 0 or #packed % DIGEST ~= 0 then
    malformed('questions must be digests of 16 bytes')
  end
  local digests, sub = {}, string.sub
  for place = 1, #packed / DIGEST do
    digests[place] = sub(packed, (place - 1) * DIGEST + 1, place * DIGEST)
  end
  return digests
end

local function check_key(call, request)
  if not request.payer.client then
    malformed('a request of the lineage alone has no idempotency key')
  elseif not (#request.key == DIGEST and #word(request.body) == DIGEST) then
    malformed('an idempotency key must be a digest of 16 bytes')
  end
  local client = request.payer.client
  client.young, client.old = call.keys[client.id .. ':requests'], call.keys[client.id .. ':requests:old']
end

-- Returns the requests of a call, each with its lines, and those with the places of their first and last questions.
local function read_requests(call, sent)
  local requests, at, asked, size = {}, 1, 0, #sent
  while at <= size do
    local request = {
      payer = call.payers[sent[at]] or malformed('a request names no payer'), time = word(sent[at + 1]),
      body = sent[at + 2], key = word(sent[at + 3]), lines = {},
    }
    local count = amount(sent[at + 4])
    if count == 0 then
      malformed('a request has a line')
    elseif request.key ~= '' then
      check_key(call, request)
    end
    at = at + 5
    for place = 1, count do
      local terms, questions = call.terms[sent[at]], amount(sent[at + 1])
      if not terms or questions == 0 then
        malformed('a line names terms, and a question')
      end
      request.lines[place] = {terms = terms, first = asked + 1, last = asked + questions}
      asked, at = asked + questions, at + 2
    end
    requests[#requests + 1] = request
  end
  if asked ~= #call.digests then
    malformed('a call has another number of questions than its lines')
  end
  return requests
end

local function read_call(keys, args)
  for _, part in ipairs({'terms', 'payers', 'requests'}) do
    if type(args[part]) ~= 'table' then
      malformed('a call must come whole')
    end
  end
  local call = {
    keys = keys, lineage = {scope = 'lineage', name = 'the lineage', what = 'the lineage', key = keys.account, prices = {}},
    link = args.link, capacity = amount(args.remembered), terms = args.terms, questions = args.questions,
    digests = split_digests(args.questions), new_to = {}, seen = {},
    accounts = {}, payers = {}, new_terms = {}, entries = {}, owners = {}, fresh = {},
  }
  for place, payer in ipairs(args.payers) do
    call.payers[place] = read_payer(call, payer)
  end
  for _, terms in ipairs(call.terms) do
    check_terms(call, terms)
  end
  for place = 1, #call.digests do
    call.new_to[place] = 0
  end
  call.requests = read_requests(call, args.requests)
  return call
end

-- Replies the clients of a call, each with its group behind it, to a caller who does not know them.
local function regrouped(call)
  local found = {'regroup'}
  for _, payer in ipairs(call.payers) do
    local group = payer.client and redis.pcall('HGET', payer.client.key, 'group') or ''
    if payer.client and not (type(group) == 'table' and group.err) then
      found[#found + 1], found[#found + 2] = payer.client.name, group or ''
    end
  end
  return found
end
