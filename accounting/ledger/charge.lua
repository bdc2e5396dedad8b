-- charge and quote, in 800 lines together: the steps of one atomic function, which share what it has read of the call.

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
-- ARGV  writes, how many of its writes the service knows of; link, of its chain; remembered, how many idempotency keys
--       are kept; terms; payers, each a client, its group and the digest of its API key, or nothing of these; and
--       requests, each with the number of its payer, time, body (a digest) and key (another) if it has one, and lines of
--       the number of their terms and questions
--
-- charge replies to each request {'charged', the number that the same request got before or nothing, how the accounts
-- stand now, the lineage's and the client's number of its first receipt or 0, then for each line a digit for each
-- question}: how many accounts paid for it, 0 also where it occurs before in the request. Or it replies a refusal, or
-- {WORD, line} for a request that failed alone. quote replies {'quoted', the refusal if any, how the accounts stand, the
-- digits}.
--
-- A service whose writes are not as many as it knows of is told {'stale'}, and nothing is decided: a call of its own
-- was done whose reply it did not get. One that does not know a client's group is told {'regroup', client, group, ...},
-- and nothing is decided either. Receipts of a service form a chain: the first of a call carries the link, a hash over
-- the link before and the hashes of the receipts of the service's calls before; the caller computes both.
--
-- `apply` is a charge of what was released before: it looks at no limit, no key and no right of the client's, and an
-- account may come out of it having spent more than its limit, which refuses it everything from then on.

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
      added = {}, fresh = {}, requests = {}, kept = 0,
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
  local payer = {chain = {}, digest = sent.digest, group = sent.group or ''}
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
  local accounts, seen = {}, {}
  for place, name in ipairs(type(terms.blocks) == 'table' and terms.blocks or malformed('terms name their blocks')) do
    local account = name == '' and call.lineage or account_of(call, 'block', name)
    if seen[account] then
      malformed('terms name a block once')
    end
    seen[account], accounts[place] = true, account
  end
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
  local digests = {}
  for at = 1, #packed, DIGEST do
    digests[#digests + 1] = string.sub(packed, at, at + DIGEST - 1)
  end
  return digests
end

local function read_request(call, request)
  request.payer = call.payers[request.payer] or malformed('a request names no payer')
  word(request.time)
  for _, line in ipairs(request.lines) do
    line.terms = call.terms[line.terms] or malformed('a line names no terms')
    line.questions = split_digests(line.questions)
  end
  if #request.lines == 0 or (request.key and not request.payer.client) then
    malformed('a request has a line, and one of the lineage alone no idempotency key')
  elseif request.key then
    if not (#word(request.key) == DIGEST and #word(request.body) == DIGEST) then
      malformed('an idempotency key must be a digest of 16 bytes')
    end
    local client = request.payer.client
    client.young, client.old = call.keys[client.id .. ':requests'], call.keys[client.id .. ':requests:old']
  end
end

local function read_call(keys, args)
  for _, part in ipairs({'terms', 'payers', 'requests'}) do
    if type(args[part]) ~= 'table' then
      malformed('a call must come whole')
    end
  end
  local call = {
    keys = keys, lineage = {scope = 'lineage', name = 'the lineage', what = 'the lineage', key = keys.account},
    link = args.link, capacity = amount(args.remembered), terms = args.terms, requests = args.requests,
    accounts = {}, payers = {}, new_terms = {}, entries = {}, paid = {}, owners = {}, fresh = {},
  }
  for place, payer in ipairs(args.payers) do
    call.payers[place] = read_payer(call, payer)
  end
  for _, terms in ipairs(call.terms) do
    check_terms(call, terms)
  end
  for _, request in ipairs(call.requests) do
    read_request(call, request)
  end
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

-- A stream counts its entries from 1 on, without a gap. One that has another number of them, or would refuse the next, is
-- found out before the first write.
local function check_stream(key, state, what)
  local newest = state.seq
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  if redis.call('XLEN', key) ~= newest or (last and whole(string.match(last[1], '^%d+')) ~= newest) then
    damaged('the number of receipts is not the one that ' .. what .. ' counts')
  end
end

-- What was paid for must not get lost unseen and be charged again.
local function check_asked(found, state, what)
  if found ~= state.asked then
    damaged('the questions that were paid for are not as many as ' .. what .. ' counts')
  end
end

local function read_lineage(call)
  local lineage, keys = call.lineage, call.keys
  if not lineage.state then
    local state = read_account(lineage.key, lineage.what)
    if not state then
      check_unused(lineage.what, {keys.receipts, keys.questions, keys.terms, keys.clients, keys.groups, keys.blocks})
      return nil
    end
    check_stream(keys.receipts, state, lineage.what)
    check_asked(redis.call('HLEN', keys.questions), state, lineage.what)
    if redis.call('HLEN', keys.blocks) ~= state.blocks then
      damaged('the blocks are not as many as the lineage counts')
    end
    lineage.state = state
  end
  return lineage.state
end

-- An account whose receipts outlived it comes back without a budget, and a client revoked: its name stays its own. It
-- is this and not `damaged` for `apply`, which only ever takes away from what may be spent.
local function bring_back(call, account, request)
  write_new(call.lineage.key, account.names, account.key, account.scope, account.name, {
    'limit', '0', 'accepts', call.lineage.state.counts_epsilon and 'pure' or 'any', 'delta', call.lineage.state.delta, 'coins', '0',
    'created', string.format('%.6f', tonumber(request.time) / 1000000),
    'revoked', account.scope == 'client' and '1' or '0',
    'group', account.scope == 'client' and request.payer.group or '',
  })
  if account.scope == 'block' then
    local lineage = call.lineage.state
    lineage.blocks = lineage.blocks + 1
  end
end

local function read_inner(call, account, request, forced)
  if account.state then
    return account.state
  end
  local state = read_account(account.key, account.what)
  local listed = redis.call('HGET', account.names, account.name)
  if not state then
    check_unused(account.what, {account.questions, account.receipts})
    if listed or (account.scope == 'group' and not forced) then
      damaged(account.what .. ' is lost')
    elseif not forced then
      return nil
    end
    bring_back(call, account, request)
    state = read_account(account.key, account.what)
    listed = state.number
  end
  if not state.number or state.number ~= listed then
    damaged('the number of ' .. account.name)
  end
  if account.receipts then
    check_stream(account.receipts, state, account.what)
    if state.group ~= request.payer.group then
      if not forced then
        error({word = 'regroup'}, 0)
      elseif state.seq > 0 then
        damaged(account.name .. ' asked as a member of another group')
      end
      redis.call('HSET', account.key, 'group', request.payer.group)
    end
  end
  if account.questions then
    check_asked(redis.call('SCARD', account.questions), state, account.what)
  end
  account.state, account.number = state, state.number
  return state
end

-- Returns nothing for a request whose lines name blocks of the lineage, having read their accounts; or the refusal.
local function authorize_blocks(call, request, forced)
  for _, line in ipairs(request.lines) do
    for _, block in ipairs(line.terms.admitted and {} or line.terms.blocks) do
      if not read_inner(call, block, request, forced) then
        return {'unknown-block', block.name}
      end
    end
    line.terms.admitted = true
  end
  return nil
end

-- Returns nothing for a request that may be decided, having read who pays; or the refusal.
local function authorize(call, request, forced)
  local payer = request.payer
  if not read_lineage(call) then
    return {'unknown-lineage'}
  end
  if not forced and payer.digest and not payer.checked then -- without a digest the client is known otherwise
    local refused = refuse_key(payer.client and payer.client.key, payer.digest, 'predict')
    if refused then
      return refused
    end
    payer.checked = true
  end
  if payer.numbers then
    return authorize_blocks(call, request, forced)
  end
  local numbers = {}
  for place = 1, #payer.chain - 1 do
    local account = payer.chain[place]
    local state = read_inner(call, account, request, forced)
    if not state then
      return {'unknown-client'}
    elseif not forced and state.revoked ~= '0' then
      return state.revoked == '1' and {'revoked'} or damaged(account.what)
    end
    numbers[place] = account.number
  end
  payer.numbers = #numbers > 0 and table.concat(numbers, ' ') or '0'
  return authorize_blocks(call, request, forced)
end

-- Returns nothing for a request without an idempotency key; else the number that it got when it came before, or
-- nothing, and the refusal of a key that was used for another body.
local function recall(request)
  if not request.key then
    return nil
  end
  local account = request.payer.client
  local entry = account.requests[request.key] or redis.call('HGET', account.young, request.key)
    or redis.call('HGET', account.old, request.key)
  if not entry then
    return nil
  elseif #entry <= DIGEST or not whole(string.sub(entry, DIGEST + 1)) then
    damaged('what an idempotency key of ' .. account.name .. ' stands for')
  elseif string.sub(entry, 1, DIGEST) ~= request.body then
    return nil, {'conflict'}
  end
  return string.sub(entry, DIGEST + 1)
end

-- Returns the accounts that paid for a question first, by number.
local function owners_of(call, numbers)
  local owners = call.owners[numbers]
  if not owners then
    owners = {}
    for number in string.gmatch(numbers, '%d+') do
      owners[number] = true
    end
    call.owners[numbers] = owners
  end
  return owners
end

-- Returns of each question of a line how many accounts of the chain it is new to. `seen` has the questions that occur
-- before in the request, which are new to none.
local function look_up(call, chain, questions, seen)
  local new_to, open, owners = {}, {}, {}
  for first = 1, #questions, SLICE do
    local last = math.min(first + SLICE - 1, #questions)
    local found = redis.call('HMGET', call.keys.questions, unpack(questions, first, last))
    for position = first, last do
      local digest = questions[position]
      local numbers = call.paid[digest] or found[position - first + 1]
      if seen[digest] then
        new_to[position] = 0
      elseif not numbers then
        new_to[position] = #chain
      else
        open[#open + 1], owners[position] = position, owners_of(call, numbers)
      end
      seen[digest] = true
    end
  end
  -- From the innermost on, each account that has paid for one closes it.
  for place = 1, #chain - 1 do
    local account, unsure, to_ask = chain[place], {}, {}
    for _, position in ipairs(open) do
      local digest = questions[position]
      if owners[position][account.number] or account.added[digest] then
        new_to[position] = place - 1
      else
        unsure[#unsure + 1], to_ask[#to_ask + 1] = position, digest
      end
    end
    open = {}
    for first = 1, #to_ask, SLICE do
      local last = math.min(first + SLICE - 1, #to_ask)
      local found = redis.call('SMISMEMBER', account.questions, unpack(to_ask, first, last))
      for at = first, last do
        if found[at - first + 1] == 1 then
          new_to[unsure[at]] = place - 1
        else
          open[#open + 1] = unsure[at]
        end
      end
    end
  end
  for _, position in ipairs(open) do
    new_to[position] = #chain - 1
  end
  return new_to
end

-- How many questions of a line are new to each account of a chain, and how many of them it may be refused for.
--
-- An account outside of the client's refuses by what is new to the client, and is charged only what is new to itself:
-- whether it pays for a row must not tell a client that somebody else asked for it. What is new to the client bounds
-- what is new to those outside of it, so their limits are kept. Of a pay-once model it is no secret that it is
-- paid for once for all clients, and a lineage that paid for it must not refuse the second client: it counts by what is
-- new to each account.
local function count_new(line, chain)
  local new = {}
  for place = 1, #chain do
    new[place] = 0
  end
  for _, accounts in ipairs(line.new_to) do
    for place = 1, accounts do
      new[place] = new[place] + 1
    end
  end
  line.new, line.at_most = new, line.terms.is_model and new or {}
  for place = 1, #chain do
    line.at_most[place] = line.terms.is_model and new[place] or new[1]
  end
end

-- What one release costs an account, in what it counts: pure epsilon or rho. Nothing where it has no price there.
local function price_of(state, terms)
  if state.counts_epsilon then
    return terms.pure
  end
  return terms.price
end

-- What an account would pay for the lines: releases and coins, for `new` or `at_most` of their questions. What has no
-- price in what the account counts takes it past every limit.
local function total_of(state, lines, which, place)
  local total, coins = 0, 0
  for _, line in ipairs(lines) do
    local releases = line.terms.times * line[which][place]
    if releases > 0 then
      total = total + (price_of(state, line.terms) or LARGEST + 1) * releases
    end
    coins = coins + line.terms.coins * releases
  end
  return total, coins
end

local function remaining(state)
  return math.max(0, state.limit - state.spent)
end

-- The shares of a request: each account that pays for it, the lines that it pays for, and the place in the chain that
-- says how many of their questions. The client and its group pay for all lines; a block for those that name it, and for
-- the questions that are new to the lineage.
local function shares_of(request)
  local chain, shares, share_of = request.payer.chain, {}, {}
  for place = 1, #chain - 1 do
    shares[place] = {account = chain[place], lines = request.lines, place = place}
  end
  for _, line in ipairs(request.lines) do
    for _, block in ipairs(line.terms.blocks) do
      if not share_of[block] then
        share_of[block] = {account = block, lines = {}, place = #chain}
        shares[#shares + 1] = share_of[block]
      end
      table.insert(share_of[block].lines, line)
    end
  end
  return shares
end

local function accepts(state, terms)
  return (state.accepts ~= 'gaussian' or terms.kind == 'gaussian') and (state.takes_claims or terms.kind ~= 'unproven')
    and price_of(state, terms) ~= nil
end

-- What an account refuses of its share of a request.
local function refusal(share)
  local account, lines, place = share.account, share.lines, share.place
  local state = account.state
  for _, line in ipairs(lines) do
    if line.at_most[place] > 0 and not accepts(state, line.terms) then
      return {'not-accepted', account.scope, line.terms.cost, account.name}
    end
  end
  local total, coins = total_of(state, lines, 'at_most', place)
  if coins > 0 and state.coined + coins > state.coins then
    return {'coins', account.scope, account.name}
  elseif total > 0 and state.spent + total > state.limit then
    return {'exhausted', account.scope, state.accepts, state.delta, text(total), text(state.spent), text(state.limit),
      account.name}
  end
  return nil
end

-- Decides on a request; writes nothing. Returns the number that it got when it came before, or nothing, and a refusal,
-- or the digits of its lines and the refusal of an account that cannot pay.
local function decide(call, request, forced)
  local refused = authorize(call, request, forced)
  if refused then
    return nil, refused
  end
  local earlier
  earlier, refused = recall(request)
  if refused then
    return nil, refused
  end
  local seen, digits, chain, unpaid = {}, {}, request.payer.chain, nil
  for place, line in ipairs(request.lines) do
    line.new_to = look_up(call, chain, line.questions, seen)
    digits[place] = table.concat(line.new_to)
    count_new(line, chain)
  end
  request.shares = shares_of(request)
  if not forced then
    for _, share in ipairs(request.shares) do
      unpaid = unpaid or refusal(share)
    end
  end
  return earlier, nil, digits, unpaid
end

-- Reads what `pay` will add to, so that it cannot fail half-way.
local function check_payable(share)
  local account, lines, place = share.account, share.lines, share.place
  account.total, account.total_coins = total_of(account.state, lines, 'new', place)
  if account.state.spent + account.total > LARGEST then
    malformed('a charge takes an account past 2^53 - 1, or has no price in what it counts')
  end
  account.tally = account.tally or {}
  for _, line in ipairs(lines) do
    local cost = line.terms.cost
    if line.new[place] > 0 and not account.tally[cost] then
      local found = redis.call('HGET', account.key, 'n:' .. cost) or '0'
      account.tally[cost] = stored(found, 'the tally of ' .. account.name)
    end
  end
end

local function pay(share)
  local account, lines, place = share.account, share.lines, share.place
  local state = account.state
  state.spent, state.coined = state.spent + account.total, state.coined + account.total_coins
  for _, line in ipairs(lines) do
    local new = line.new[place]
    if new > 0 then
      account.tally[line.terms.cost] = account.tally[line.terms.cost] + line.terms.times * new
    end
    if account.scope == 'block' then
      state.asked = state.asked + new
    end
  end
end

-- Notes that the accounts which a question is new to have paid for it.
local function mark_paid(call, payer, digest, accounts)
  local chain = payer.chain
  if accounts == #chain then
    call.paid[digest] = payer.numbers
    call.fresh[#call.fresh + 1], call.fresh[#call.fresh + 2] = digest, payer.numbers
    call.lineage.state.asked = call.lineage.state.asked + 1
    return
  end
  for place = 1, accounts do
    local account = chain[place]
    account.added[digest] = true
    account.fresh[#account.fresh + 1] = digest
    account.state.asked = account.state.asked + 1
  end
end

-- Keeps what an admitted request changes, for `write`. Returns the numbers of its first receipt, the lineage's and the
-- client's, or 0 and 0.
local function apply_request(call, request, earlier)
  local payer, first, own = request.payer, 0, 0
  for _, share in ipairs(request.shares) do
    check_payable(share)
  end
  for _, share in ipairs(request.shares) do
    pay(share)
  end
  for _, line in ipairs(request.lines) do
    if line.new[1] > 0 then
      for _, account in ipairs(payer.chain) do
        account.state.seq = account.state.seq + 1
      end
      for _, block in ipairs(line.terms.blocks) do
        if block ~= call.lineage then -- which ends the chain
          block.state.seq = block.state.seq + 1
        end
      end
      local entry = {number = call.lineage.state.seq, own = payer.client and payer.client.state.seq or 0, line = line,
        payer = payer, time = request.time, questions = {}}
      if first == 0 then
        first, own = entry.number, entry.own
      end
      call.entries[#call.entries + 1] = entry
      for position, accounts in ipairs(line.new_to) do
        if accounts > 0 then
          entry.questions[#entry.questions + 1] = line.questions[position]
          mark_paid(call, payer, line.questions[position], accounts)
        end
      end
    end
  end
  if request.key and not earlier then
    payer.client.requests[request.key] = request.body .. text(own)
    payer.client.kept = payer.client.kept + 1
  end
  return first, own
end

-- How the accounts of a request stand: what the innermost has spent, its limit, what it accepts, its delta, its highest
-- former limit; and what those outside of it have left at least, of those that count rho and of those that count epsilon,
-- `-` where there is none.
local function standing(shares)
  local own, rho, epsilon = shares[1].account.state, '-', '-'
  for place = math.min(2, #shares), #shares do
    local state = shares[place].account.state
    if state.counts_epsilon then
      epsilon = text(math.min(whole(epsilon) or LARGEST, remaining(state)))
    else
      rho = text(math.min(whole(rho) or LARGEST, remaining(state)))
    end
  end
  return table.concat({text(own.spent), text(own.limit), own.accepts, own.delta, text(own.highest), rho, epsilon}, ' ')
end

local function write_account(account, ...)
  local state, fields = account.state, {}
  for cost, releases in pairs(account.tally or {}) do
    fields[#fields + 1] = 'n:' .. cost
    fields[#fields + 1] = text(releases)
  end
  in_slices('HSET', account.key, fields, 2)
  redis.call('HSET', account.key, 'spent', text(state.spent), 'coined', text(state.coined),
    'asked', text(state.asked), ...)
end

local function number_of_terms(call, terms)
  if not terms.number then
    terms.number = redis.call('HGET', call.keys.terms, terms.packed)
    if not terms.number then
      terms.number = text(redis.call('HLEN', call.keys.terms) + #call.new_terms / 2 + 1)
      call.new_terms[#call.new_terms + 1] = terms.packed
      call.new_terms[#call.new_terms + 1] = terms.number
    end
  end
  return terms.number
end

local function write_receipts(call, asker)
  for place, entry in ipairs(call.entries) do
    local line, payer = entry.line, entry.payer
    local client, grouped = payer.client, #payer.chain == 3
    redis.call('XADD', call.keys.receipts, text(entry.number) .. '-' .. text(entry.own),
      'client', client and client.number or '0', 'group', grouped and payer.chain[2].number or '0',
      'terms', number_of_terms(call, line.terms), 'microseconds', entry.time,
      'questions', table.concat(entry.questions), 'group_questions', grouped and text(line.new[2]) or '0',
      'lineage_questions', text(line.new[#line.new]), 'service', asker.number, 'link', place == 1 and call.link or '')
    if client then
      -- A mere index: that it takes no further entry must not leave the charge half done.
      redis.pcall('XADD', client.receipts, text(entry.own) .. '-' .. text(entry.number), '', '')
    end
  end
end

-- The oldest idempotency keys are forgotten first, some half of them at a time.
local function write_requests(account)
  if account.crowded then
    redis.call('UNLINK', account.old)
    if redis.call('EXISTS', account.young) == 1 then
      redis.call('RENAME', account.young, account.old)
    end
  end
  for key, entry in pairs(account.requests) do
    redis.call('HSET', account.young, key, entry)
  end
end

-- Uses every right that will be needed, and looks whether idempotency keys have to be forgotten.
local function check_writable(call, asker)
  check_right('HSET', asker.services, '', '')
  check_right('XADD', call.keys.receipts, '*', '', '')
  for _, key in ipairs({call.lineage.key, call.keys.questions, call.keys.terms}) do
    check_right('HSET', key, '', '')
  end
  for _, account in pairs(call.accounts) do
    if account.state then
      check_right('HSET', account.key, '', '')
      if account.questions then
        check_right('SADD', account.questions, '')
      end
      account.crowded = account.kept > 0 and redis.call('HLEN', account.young) + account.kept > call.capacity
      if account.kept > 0 then
        check_right('HSET', account.young, '', '')
      end
      if account.crowded then
        check_right('EXISTS', account.young)
        check_right('UNLINK', account.old)
        check_right('RENAME', account.young, account.old)
      end
    end
  end
end

-- Writes what the requests of a call changed together: receipts, what they cost, that it was paid for, and then that
-- all of it was written.
local function write(call, asker)
  check_writable(call, asker)
  write_receipts(call, asker)
  in_slices('HSET', call.keys.terms, call.new_terms, 2)
  for _, account in pairs(call.accounts) do
    if account.tally then
      write_account(account, 'seq', text(account.state.seq))
    end
  end
  if #call.entries > 0 then
    write_account(call.lineage)
  end
  for _, account in pairs(call.accounts) do
    in_slices('SADD', account.questions, account.fresh, 1)
    write_requests(account)
  end
  in_slices('HSET', call.keys.questions, call.fresh, 2)
  count_write(asker)
  if #call.entries > 0 then
    -- Without which it takes no further charge.
    redis.call('HSET', call.lineage.key, 'seq', text(call.lineage.state.seq))
  end
end

local function charge_request(call, request, forced)
  local earlier, refused, digits, unpaid = decide(call, request, forced)
  if refused or unpaid then
    return refused or unpaid
  end
  local first, own = apply_request(call, request, earlier)
  return {'charged', earlier or '', standing(request.shares), text(first), text(own), unpack(digits)}
end

-- Decides on each request for itself: one whose payer's keys cannot be read fails alone.
local function charge_each(keys, args, asker, forced)
  local call, replies, wrote = read_call(keys, args), {}, false
  if asker.id == '' or #word(call.link) ~= 32 then
    malformed('a charge is a service\'s, and has a link')
  elseif asker.writes ~= args.writes then
    return {'stale'}
  end
  for place, request in ipairs(call.requests) do
    local ok, reply, line = attempt(charge_request, call, request, forced)
    if not ok and reply == 'regroup' then -- before anything is written
      return regrouped(call)
    end
    replies[place] = ok and reply or {string.upper(reply), line}
    wrote = wrote or replies[place][1] == 'charged'
  end
  if wrote then -- a free question, too: whoever answers it relies on its having been paid for durably
    write(call, asker)
  end
  return replies
end

local function charge(keys, args, asker)
  return charge_each(keys, args, asker, false)
end

local function apply(keys, args, asker)
  return charge_each(keys, args, asker, true)
end

local function quote(keys, args)
  local call = read_call(keys, args)
  local request = call.requests[1] or malformed('nothing is asked')
  local ok, problem, refused, digits, unpaid = pcall(decide, call, request, false)
  if not ok then
    return type(problem) == 'table' and problem.word == 'regroup' and regrouped(call) or error(problem, 0)
  elseif refused then
    return refused
  end
  return {'quoted', unpaid or '', standing(request.shares), unpack(digits)}
end

-- Whether a client, or of none anybody, has paid for all of these questions.
local function has_paid(keys, id, digests)
  local number = id ~= '' and redis.call('HGET', keys[id], 'number') or nil
  if id ~= '' and not number then
    return false
  end
  for first = 1, #digests, SLICE do
    local last = math.min(first + SLICE - 1, #digests)
    local owners, members = redis.call('HMGET', keys.questions, unpack(digests, first, last)), {}
    if number then
      members = redis.call('SMISMEMBER', keys[id .. ':questions'], unpack(digests, first, last))
    end
    for place = 1, last - first + 1 do
      local owner = owners[place] and ' ' .. owners[place] .. ' '
      local is_first = owner and (not number or string.find(owner, ' ' .. number .. ' ', 1, true))
      if not is_first and members[place] ~= 1 then
        return false
      end
    end
  end
  return true
end

-- KEYS  questions; and of each client its account, with :questions
-- ARGV  receipts, each with the id of its client's account, or nothing, and questions
-- Replies for each of them 1 if all of its questions were paid for by its client, or of none by anybody, or else 0.
local function paid(keys, args)
  local replies = {}
  for place, receipt in ipairs(args.receipts) do
    replies[place] = has_paid(keys, word(receipt.id), split_digests(receipt.questions)) and 1 or 0
  end
  return replies
end

register_on_lineage('charge', {}, charge)
register_on_lineage('apply', EVEN_WHEN_FULL, apply)
register_on_lineage('quote', {'no-writes'}, quote)
register_on_lineage('paid', {'no-writes'}, paid)
