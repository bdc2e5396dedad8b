
-- charge, apply and quote: the steps of one atomic function, which share what they have read of the call (`call.lua`).

-- A stream counts its entries from 1 on, without a gap: none can be put in before the last. One that has another number of
-- them, or would refuse the next, is found out before the first write.
local function check_stream(key, state, what)
  if redis.call('XLEN', key) ~= state.seq or redis.call('XRANGE', key, text(state.seq + 1), '+', 'COUNT', 1)[1] then
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
    if not line.terms.admitted then
      for _, block in ipairs(line.terms.blocks) do
        if not read_inner(call, block, request, forced) then
          return {'unknown-block', block.name}
        end
      end
      line.terms.admitted = true
    end
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
  if request.key == '' then
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

-- Reads of all questions of a call who paid for them first.
local function read_paid(call)
  local paid, digests = {}, call.digests
  for first = 1, #digests, SLICE do
    local last = math.min(first + SLICE - 1, #digests)
    for place, numbers in ipairs(redis.call('HMGET', call.keys.questions, unpack(digests, first, last))) do
      paid[digests[first + place - 1]] = numbers or nil
    end
  end
  call.paid = paid
  return paid
end

-- Notes of questions that the client did not pay for first, at these places, how many accounts they are new to: from the
-- innermost on, each account that has paid for one later closes it.
local function look_up_later(call, chain, open)
  for place = 1, #chain - 1 do
    local account, unsure, to_ask = chain[place], {}, {}
    for _, position in ipairs(open) do
      local digest = call.digests[position]
      if account.added[digest] or owners_of(call, call.paid[digest])[account.number] then
        call.new_to[position] = place - 1
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
          call.new_to[unsure[at]] = place - 1
        else
          open[#open + 1] = unsure[at]
        end
      end
    end
  end
  for _, position in ipairs(open) do
    call.new_to[position] = #chain - 1
  end
end

-- Notes of each question of a line how many accounts of the chain it is new to: of one that occurs before in the request,
-- to none. And of the line, how many of its questions are new to each account.
local function look_up(call, request, line)
  local chain, paid, seen, digests, new_to = request.payer.chain, call.paid, call.seen, call.digests, call.new_to
  local inner, open = chain[1].number, nil
  for position = line.first, line.last do
    local digest = digests[position]
    local numbers = paid[digest]
    if seen[digest] == request then
      new_to[position] = 0
    elseif not numbers then
      new_to[position] = #chain
    elseif inner and owners_of(call, numbers)[inner] then
      new_to[position] = 0
    else
      open = open or {}
      open[#open + 1] = position
    end
    seen[digest] = request
  end
  if open then
    look_up_later(call, chain, open)
  end
  local new = {0, 0, 0}
  for position = line.first, line.last do
    for place = 1, new_to[position] do
      new[place] = new[place] + 1
    end
  end
  line.new = new
end

-- How many questions of a line an account at this place of the chain may be refused for.
--
-- An account outside of the client's refuses by what is new to the client, and is charged only what is new to itself:
-- whether it pays for a row must not tell a client that somebody else asked for it. What is new to the client bounds
-- what is new to those outside of it, so their limits are kept. Of a pay-once model it is no secret that it is
-- paid for once for all clients, and a lineage that paid for it must not refuse the second client: it counts by what is
-- new to each account.
local function at_most(line, place)
  return line.terms.is_model and line.new[place] or line.new[1]
end

-- What one release costs an account, in what it counts: pure epsilon or rho. What has no price there takes it past every
-- limit.
local function price_of(account, terms)
  local price = account.prices[terms]
  if not price then
    price = (account.state.counts_epsilon and terms.pure) or (not account.state.counts_epsilon and terms.price)
      or LARGEST + 1
    account.prices[terms] = price
  end
  return price
end

local function remaining(state)
  return math.max(0, state.limit - state.spent)
end

-- The shares of a request: each account that pays for it, and the place in the chain that says how many questions of its
-- lines. The client and its group pay for all lines; a block for those that name it, and for the questions that are new
-- to the lineage. Requests of one payer at the same terms have the same.
local function shares_of(request)
  local payer, lines = request.payer, request.lines
  local shares = #lines == 1 and payer.shares[lines[1].terms]
  if not shares then
    local chain, seen = payer.chain, {}
    shares = {}
    for place = 1, #chain - 1 do
      shares[place] = {account = chain[place], place = place, inner = true}
    end
    for _, line in ipairs(lines) do
      for _, block in ipairs(line.terms.blocks) do
        if not seen[block] then
          seen[block] = true
          shares[#shares + 1] = {account = block, place = #chain}
        end
      end
    end
    if #lines == 1 then
      payer.shares[lines[1].terms] = shares
    end
  end
  return shares
end

local function accepts(account, terms)
  local state = account.state
  return (state.accepts ~= 'gaussian' or terms.kind == 'gaussian') and (state.takes_claims or terms.kind ~= 'unproven')
    and price_of(account, terms) <= LARGEST
end

-- What an account refuses of its share of a request.
local function refusal(share, lines)
  local account, place, total, coins = share.account, share.place, 0, 0
  local state = account.state
  for _, line in ipairs(lines) do
    local terms, questions = line.terms, at_most(line, place)
    if questions > 0 and (share.inner or terms.pays[account]) then
      if not accepts(account, terms) then
        return {'not-accepted', account.scope, terms.cost, account.name}
      end
      total = total + price_of(account, terms) * terms.times * questions
      coins = coins + terms.coins * terms.times * questions
    end
  end
  if coins > 0 and state.coined + coins > state.coins then
    return {'coins', account.scope, account.name}
  elseif total > 0 and state.spent + total > state.limit then
    return {'exhausted', account.scope, state.accepts, state.delta, text(total), text(state.spent), text(state.limit),
      account.name}
  end
  return nil
end

-- Decides on a request; writes nothing. Returns the number that it got when it came before, or nothing; and a refusal of
-- the request, or that of an account that cannot pay.
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
  if not call.paid then
    read_paid(call)
  end
  for _, line in ipairs(request.lines) do
    look_up(call, request, line)
    request.is_new = request.is_new or line.new[1] > 0
  end
  request.shares = shares_of(request)
  local unpaid = nil
  if request.is_new and not forced then
    for _, share in ipairs(request.shares) do
      unpaid = unpaid or refusal(share, request.lines)
    end
  end
  return earlier, nil, unpaid
end

-- Reads what `pay` will add to, so that it cannot fail half-way.
local function check_payable(share, lines)
  local account, place, total, coins = share.account, share.place, 0, 0
  account.tally = account.tally or {}
  for _, line in ipairs(lines) do
    local terms, new = line.terms, line.new[place]
    if new > 0 and (share.inner or terms.pays[account]) then
      total = total + price_of(account, terms) * terms.times * new
      coins = coins + terms.coins * terms.times * new
      if not account.tally[terms.cost] then
        local found = redis.call('HGET', account.key, 'n:' .. terms.cost) or '0'
        account.tally[terms.cost] = stored(found, 'the tally of ' .. account.name)
      end
    end
  end
  account.total, account.total_coins = total, coins
  if account.state.spent + total > LARGEST then
    malformed('a charge takes an account past 2^53 - 1, or has no price in what it counts')
  end
end

local function pay(share, lines)
  local account, place = share.account, share.place
  local state = account.state
  state.spent, state.coined = state.spent + account.total, state.coined + account.total_coins
  for _, line in ipairs(lines) do
    local terms, new = line.terms, line.new[place]
    if new > 0 and (share.inner or terms.pays[account]) then
      account.tally[terms.cost] = account.tally[terms.cost] + terms.times * new
      if account.scope == 'block' then
        state.asked = state.asked + new
      end
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

-- Returns the questions of a line that are new, one behind the other, and notes that they are paid for.
local function mark_new(call, payer, line)
  for position = line.first, line.last do
    if call.new_to[position] > 0 then
      mark_paid(call, payer, call.digests[position], call.new_to[position])
    end
  end
  if line.new[1] == line.last - line.first + 1 then
    return string.sub(call.questions, (line.first - 1) * DIGEST + 1, line.last * DIGEST)
  end
  local questions = {}
  for position = line.first, line.last do
    questions[#questions + 1] = call.new_to[position] > 0 and call.digests[position] or nil
  end
  return table.concat(questions)
end

-- Keeps what an admitted request changes, for `write`. Returns the numbers of its first receipt, the lineage's and the
-- client's, or 0 and 0.
local function apply_request(call, request, earlier)
  local payer, lines, first, own = request.payer, request.lines, 0, 0
  if request.is_new then
    for _, share in ipairs(request.shares) do
      check_payable(share, lines)
    end
    for _, share in ipairs(request.shares) do
      pay(share, lines)
    end
  end
  for _, line in ipairs(lines) do
    if line.new[1] > 0 then
      for _, account in ipairs(payer.chain) do
        account.state.seq = account.state.seq + 1
      end
      for _, block in ipairs(line.terms.blocks) do
        if block ~= call.lineage then -- which ends the chain
          block.state.seq = block.state.seq + 1
        end
      end
      line.number, line.own = call.lineage.state.seq, payer.client and payer.client.state.seq or 0
      line.payer, line.time, line.questions = payer, request.time, mark_new(call, payer, line)
      if first == 0 then
        first, own = line.number, line.own
      end
      call.entries[#call.entries + 1] = line
    end
  end
  if request.key ~= '' and not earlier then
    payer.client.requests[request.key] = request.body .. text(own)
    payer.client.kept = payer.client.kept + 1
    call.keeps = true
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

-- Returns the place of how the accounts of these shares stand, which `charge_each` writes when nothing changes any more.
local function place_of_standing(call, shares)
  local place = call.places[shares]
  if not place then
    place = #call.standings + 1
    call.places[shares], call.standings[place] = place, shares
  end
  return place
end

local function write_account(account, ...)
  local state, fields = account.state, {...}
  for name, value in pairs({spent = state.spent, coined = state.coined, asked = state.asked}) do
    fields[#fields + 1], fields[#fields + 2] = name, text(value)
  end
  for cost, releases in pairs(account.tally or {}) do
    fields[#fields + 1], fields[#fields + 2] = 'n:' .. cost, text(releases)
  end
  in_slices('HSET', account.key, fields, 2)
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
  for place, line in ipairs(call.entries) do
    local payer, number, own = line.payer, text(line.number), text(line.own)
    local client, grouped = payer.client, #payer.chain == 3
    redis.call('XADD', call.keys.receipts, number .. '-' .. own,
      'client', client and client.number or '0', 'group', grouped and payer.chain[2].number or '0',
      'terms', number_of_terms(call, line.terms), 'microseconds', line.time,
      'questions', line.questions, 'group_questions', grouped and text(line.new[2]) or '0',
      'lineage_questions', text(line.new[#payer.chain]), 'service', asker.number, 'link', place == 1 and call.link or '')
    if client then
      -- A mere index: that it takes no further entry must not leave the charge half done.
      redis.pcall('XADD', client.receipts, own .. '-' .. number, '', '')
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
  local fields = {}
  for key, entry in pairs(account.requests) do
    fields[#fields + 1], fields[#fields + 2] = key, entry
  end
  in_slices('HSET', account.young, fields, 2)
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

local function reply(call, outcome, standing, first, own)
  local replies, at = call.replies, #call.replies
  replies[at + 1], replies[at + 2], replies[at + 3], replies[at + 4] = outcome, standing or '', first or '', own or ''
end

-- Decides on a request, keeps what it changes, and replies.
local function charge_request(call, request, forced)
  local earlier, refused, unpaid = decide(call, request, forced)
  if refused or unpaid then
    reply(call, refused or unpaid)
  else
    local first, own = apply_request(call, request, earlier)
    call.charged = true
    reply(call, earlier or '', place_of_standing(call, request.shares), text(first), text(own))
  end
end

-- What the store and the lineage are like, for a caller to say that its writes cover all of it.
local function state_of(call, mark)
  return mark .. ' ' .. text(call.lineage.state.seq)
end

-- Decides on each request for itself: one whose payer's keys cannot be read fails alone.
local function charge_each(keys, args, asker, forced)
  local call, standings = read_call(keys, args), {}
  if asker.id == '' or #word(call.link) ~= 32 then
    malformed('a charge is a service\'s, and has a link')
  elseif asker.writes ~= args.writes then
    return {'stale'}
  end
  call.places, call.standings, call.replies = {}, {}, {'', '', standings}
  for _, request in ipairs(call.requests) do
    local ok, failed, line = attempt(charge_request, call, request, forced)
    if failed == 'regroup' then -- before anything is written
      return regrouped(call)
    elseif not ok then
      reply(call, {string.upper(failed), line})
    end
  end
  if call.charged then
    if forced or call.keeps or #call.entries > 0 or args.covered ~= state_of(call, args.mark) then
      write(call, asker)
    end
    call.replies[1], call.replies[2] = state_of(call, args.mark), table.concat(call.new_to)
  end
  for place, shares in ipairs(call.standings) do
    standings[place] = standing(shares)
  end
  return call.replies
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
  local ok, problem, refused, unpaid = pcall(decide, call, request, false)
  if not ok then
    return type(problem) == 'table' and problem.word == 'regroup' and regrouped(call) or error(problem, 0)
  elseif refused then
    return refused
  end
  return {'quoted', unpaid or '', standing(request.shares), table.concat(call.new_to)}
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
