
-- charge and quote ----------------------------------------------------------------------------------------------
-- A question is a digest of 16 bytes that the caller computed of everything that decides its answer. Who paid for it
-- first is written in the lineage's `questions`, a hash from the digest to the client's number, 0 for the lineage
-- alone; who paid for it later has it in a set of its own. So:
--
--   the lineage has paid for a question     if it is in `questions`
--   a client has paid for a question        if `questions` has the client's number for it, or it is in the client's set
--
-- A request is made of lines, each of questions at the same terms. For a request for rows there is one; whoever takes a
-- pay-once model up to some tier has a line for each of its steps.
--
-- KEYS  the lineage's account, receipts, questions, terms, clients; then each client's account, index of receipts,
--       questions, young requests, old requests
-- ARGV  how many of its writes the service knows of, the link of its chain, how many idempotency keys are kept, how
--       many payers there are, how many terms; then what `read_payer` reads of each payer, `read_terms` of each of the
--       terms, and `read_request` of each request until the end
--
-- charge replies to each request {'charged', the number that the same request got before or nothing, how both accounts
-- stand now, the lineage's and the client's number of its first receipt or 0, then for each line a letter for each
-- question}: n, new to client and lineage; c, new to the client; f, free; a, free because it occurs before in the
-- request. Or it replies a refusal, or {WORD, line} for a request that failed alone. quote replies {'quoted', the
-- refusal if any, the letters}.
--
-- A service whose writes are not as many as it knows of is told {'stale'}, and nothing is decided: a call of its own
-- was done whose reply it did not get. Receipts of a service form a chain: the first of a call carries the link, a hash
-- over the link before and the hashes of the receipts of the service's calls before; the caller computes both.
--
-- `apply` is a charge of what was released before: it looks at no limit, no key and no right of the client's, and an
-- account may come out of it having spent more than its limit, which refuses it everything from then on.

local PAYER_FIELDS, TERMS_FIELDS, DIGEST = 3, 7, 16

local function escaped(name)
  return (string.gsub(name, '[^%w_.~-]', function(byte)
    return string.format('%%%02X', string.byte(byte))
  end))
end

-- Two payers of a call may be one client with two API keys: they share its account.
local function read_payer(call, keys, args, at)
  local place, name, digest = amount(args[at]), args[at + 1], args[at + 2]
  local account = call.accounts[place]
  if not account and place == 0 then
    account = {name = '', number = '0'}
  elseif not account then
    local first, ending = 5 * place + 1, ':client:' .. escaped(name)
    if string.sub(keys[first] or '', -#ending) ~= ending or not keys[first + 4] then
      malformed('a request names no client') -- or its receipt would name another than who pays
    end
    account = {
      key = keys[first], receipts = keys[first + 1], questions = keys[first + 2], young = keys[first + 3],
      old = keys[first + 4], name = name, added = {}, fresh = {}, requests = {}, kept = 0,
    }
  end
  call.accounts[place] = account
  if account.name ~= name then
    malformed('a request names no client')
  end
  return {account = account, digest = digest}
end

local function read_terms(args, at)
  return {
    packed = args[at], cost = args[at + 1], kind = args[at + 2], price = amount(args[at + 3]),
    times = amount(args[at + 4]), coins = amount(args[at + 5]), is_step = args[at + 6] == '1',
  }
end

local function split_digests(packed)
  if #packed == 0 or #packed % DIGEST ~= 0 then
    malformed('questions must be digests of 16 bytes')
  end
  local digests = {}
  for at = 1, #packed, DIGEST do
    digests[#digests + 1] = string.sub(packed, at, at + DIGEST - 1)
  end
  return digests
end

-- Returns a request and where the next one begins: its payer, time, the digest of its body, its idempotency key, how
-- many lines it has, and for each the number of its terms and the questions.
local function read_request(call, args, at)
  local request = {
    payer = call.payers[amount(args[at])] or malformed('a request names no payer'), time = args[at + 1],
    body = args[at + 2], key = args[at + 3], lines = {},
  }
  for place = at + 5, at + 3 + 2 * amount(args[at + 4]), 2 do
    request.lines[#request.lines + 1] = {
      terms = call.terms[amount(args[place])] or malformed('a line names no terms'),
      questions = split_digests(args[place + 1] or malformed('a request must come whole')),
    }
  end
  if #request.lines == 0 or (request.key ~= '' and request.payer.account.number == '0') then
    malformed('a request has a line, and one of the lineage alone no idempotency key')
  end
  return request, at + 5 + 2 * #request.lines
end

local function read_call(keys, args)
  local call = {
    lineage = {key = keys[1], name = 'the lineage'}, receipts = keys[2], questions = keys[3], terms_key = keys[4],
    clients = keys[5], link = args[2], capacity = amount(args[3]),
    accounts = {}, payers = {}, terms = {}, new_terms = {}, requests = {}, entries = {}, paid = {}, fresh = {},
  }
  local at = 6
  for place = 1, amount(args[4]) do
    call.payers[place], at = read_payer(call, keys, args, at), at + PAYER_FIELDS
  end
  for place = 1, amount(args[5]) do
    call.terms[place], at = read_terms(args, at), at + TERMS_FIELDS
  end
  while at <= #args do
    call.requests[#call.requests + 1], at = read_request(call, args, at)
  end
  return call
end

-- A stream counts its entries from 1 on, without a gap. One that has another number of them, or would refuse the next,
-- is found out before the first write.
local function check_stream(key, newest, what)
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
  local lineage = call.lineage
  if not lineage.state then
    local state = read_account(lineage.key, lineage.name)
    if not state then
      check_unused(lineage.name, {call.receipts, call.questions, call.terms_key, call.clients})
      return nil
    end
    check_stream(call.receipts, state.seq, lineage.name)
    check_asked(redis.call('HLEN', call.questions), state, lineage.name)
    lineage.state = state
  end
  return lineage.state
end

-- A client whose receipts outlived its account gets the account back, revoked: its name stays its own. It is this and
-- not `damaged` for `apply`, which only ever takes away from what may be spent.
local function bring_back(call, account, time)
  write_client(call.lineage.key, call.clients, account.key, account.name, {
    'limit', '0', 'accepts', 'any', 'delta', call.lineage.state.delta, 'coins', '0',
    'created', string.format('%.6f', tonumber(time) / 1000000), 'revoked', '1',
  })
end

local function read_client(call, account, time, forced)
  if account.state or account.number == '0' then
    return account.state
  end
  local what = 'the account of ' .. account.name
  local state = read_account(account.key, what)
  local listed = redis.call('HGET', call.clients, account.name)
  if not state then
    check_unused(what, {account.receipts, account.questions})
    if listed then
      damaged(what .. ' is lost')
    elseif not forced then
      return nil
    end
    bring_back(call, account, time)
    state = read_account(account.key, what)
    listed = state.number
  end
  if not state.number or state.number ~= listed then
    damaged('the number of ' .. account.name)
  end
  check_stream(account.receipts, state.seq, what)
  check_asked(redis.call('SCARD', account.questions), state, what)
  account.state, account.number = state, state.number
  return state
end

-- Returns nothing for a request that may be decided, having read who pays; or the refusal.
local function admit(call, request, forced)
  local payer = request.payer
  if not read_lineage(call) then
    return {'unknown-lineage'}
  end
  if not forced and payer.digest ~= '' and not payer.checked then -- without a digest the client is known otherwise
    local refused = refuse_key(payer.account.key, payer.digest, 'predict')
    if refused then
      return refused
    end
    payer.checked = true
  end
  if payer.account.number == '0' then
    return nil
  end
  local state = read_client(call, payer.account, request.time, forced)
  if not state then
    return {'unknown-client'}
  elseif not forced and state.revoked ~= '0' then
    return state.revoked == '1' and {'revoked'} or damaged('the account of ' .. payer.account.name)
  end
  return nil
end

-- Returns nothing for a request without an idempotency key; else the number that it got when it came before, or
-- nothing, and the refusal of a key that was used for another body.
local function recall(request)
  if request.key == '' then
    return nil
  end
  local account = request.payer.account
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

-- Returns a letter for each question of a line, and the questions that are new to the client and how many of them are
-- new to the lineage. `seen` has the questions that occur before in the request.
local function look_up(call, account, questions, seen)
  local letters, fresh, shared, to_ask = {}, {}, {}, {}
  for first = 1, #questions, SLICE do
    local last = math.min(first + SLICE - 1, #questions)
    local found = redis.call('HMGET', call.questions, unpack(questions, first, last))
    for position = first, last do
      local digest = questions[position]
      local owner = call.paid[digest] or found[position - first + 1]
      if seen[digest] then
        letters[position] = 'a'
      elseif not owner then
        letters[position] = 'n'
      elseif owner == account.number or account.number == '0' or account.added[digest] then
        letters[position] = 'f'
      else
        shared[#shared + 1], to_ask[#to_ask + 1] = position, digest
      end
      seen[digest] = true
    end
  end
  for first = 1, #to_ask, SLICE do
    local last = math.min(first + SLICE - 1, #to_ask)
    local found = redis.call('SMISMEMBER', account.questions, unpack(to_ask, first, last))
    for place = first, last do
      letters[shared[place]] = found[place - first + 1] == 1 and 'f' or 'c'
    end
  end
  local new_to_lineage = 0
  for position, letter in ipairs(letters) do
    if letter == 'n' or letter == 'c' then
      fresh[#fresh + 1] = questions[position]
      new_to_lineage = new_to_lineage + (letter == 'n' and 1 or 0)
    end
  end
  return table.concat(letters), fresh, new_to_lineage
end

-- What an account would pay for the lines, of each of which so many questions are new to it.
local function total_of(lines, count)
  local total, coins = 0, 0
  for _, line in ipairs(lines) do
    local releases = line.terms.times * line[count]
    total = total + line.terms.price * releases
    coins = coins + line.terms.coins * releases
  end
  return total, coins
end

-- What an account refuses of lines of each of which so many questions count as new to it.
local function refusal(scope, state, lines, count)
  for _, line in ipairs(lines) do
    local kind = line.terms.kind
    if line[count] > 0 and ((state.accepts == 'gaussian' and kind ~= 'gaussian')
      or (state.accepts ~= 'unproven' and kind == 'unproven')) then
      return {'not-accepted', scope, line.terms.cost}
    end
  end
  local total, coins = total_of(lines, count)
  if coins > 0 and state.coined + coins > state.coins then
    return {'coins', scope}
  elseif total > 0 and state.spent + total > state.limit then
    return {'exhausted', scope, text(total), text(state.spent), text(state.limit)}
  end
  return nil
end

-- The lineage refuses by what is new to the client, and is charged only what is new to it: whether it pays for a row
-- must not tell a client that somebody else asked for it. What is new to the client bounds what is new to the lineage,
-- so the lineage's limit is kept. Of a pay-once model's steps it is no secret that the lineage pays once for all who
-- hold them, and a lineage that paid for the finest must not refuse the second client: they count by what is new to it.
--
-- Decides on a request; writes nothing. Returns the number that it got when it came before, or nothing, and a refusal,
-- or the letters of its lines and the refusal of an account that cannot pay.
local function decide(call, request, forced)
  local refused = admit(call, request, forced)
  if refused then
    return nil, refused
  end
  local earlier
  earlier, refused = recall(request)
  if refused then
    return nil, refused
  end
  local seen, letters, account = {}, {}, request.payer.account
  for place, line in ipairs(request.lines) do
    letters[place], line.fresh, line.of_lineage = look_up(call, account, line.questions, seen)
    line.of_client = #line.fresh
    line.at_most = line.terms.is_step and line.of_lineage or line.of_client
  end
  if not forced then
    refused = account.state and refusal('client', account.state, request.lines, 'of_client')
      or refusal('lineage', call.lineage.state, request.lines, 'at_most')
  end
  return earlier, nil, letters, refused
end

-- Reads what `pay` will add to, so that it cannot fail half-way.
local function check_payable(account, lines, count)
  if not account.state then
    return
  elseif account.state.spent + (total_of(lines, count)) > LARGEST then
    malformed('a charge takes an account past 2^53 - 1')
  end
  account.tally = account.tally or {}
  for _, line in ipairs(lines) do
    local cost = line.terms.cost
    if line[count] > 0 and not account.tally[cost] then
      local found = redis.call('HGET', account.key, 'n:' .. cost) or '0'
      account.tally[cost] = stored(found, 'the tally of ' .. account.name)
    end
  end
end

local function pay(account, lines, count)
  local total, coins = total_of(lines, count)
  local state = account.state
  state.spent, state.coined = state.spent + total, state.coined + coins
  for _, line in ipairs(lines) do
    if line[count] > 0 then
      account.tally[line.terms.cost] = account.tally[line.terms.cost] + line.terms.times * line[count]
    end
  end
end

-- Keeps what an admitted request changes, for `write`. Returns the numbers of its first receipt, the lineage's and the
-- client's, or 0 and 0.
local function enter(call, request, earlier, letters)
  local account, whole_lineage = request.payer.account, call.lineage
  local first, own = 0, 0
  check_payable(whole_lineage, request.lines, 'of_lineage')
  check_payable(account, request.lines, 'of_client')
  pay(whole_lineage, request.lines, 'of_lineage')
  if account.state then
    pay(account, request.lines, 'of_client')
  end
  for place, line in ipairs(request.lines) do
    if line.of_client > 0 then
      whole_lineage.state.seq = whole_lineage.state.seq + 1
      if account.state then
        account.state.seq = account.state.seq + 1
      end
      local entry = {number = whole_lineage.state.seq, own = account.state and account.state.seq or 0, line = line,
        account = account, time = request.time}
      if first == 0 then
        first, own = entry.number, entry.own
      end
      call.entries[#call.entries + 1] = entry
      local next_fresh = 0
      for letter in string.gmatch(letters[place], '[nc]') do
        next_fresh = next_fresh + 1
        local digest = line.fresh[next_fresh]
        if letter == 'n' then
          call.paid[digest] = account.number
          call.fresh[#call.fresh + 1] = digest
          call.fresh[#call.fresh + 1] = account.number
          whole_lineage.state.asked = whole_lineage.state.asked + 1
        else
          account.added[digest] = true
          account.fresh[#account.fresh + 1] = digest
          account.state.asked = account.state.asked + 1
        end
      end
    end
  end
  if request.key ~= '' and not earlier then
    account.requests[request.key] = request.body .. text(own)
    account.kept = account.kept + 1
  end
  return first, own
end

-- How both accounts stand: what the client has spent, its limit, what it accepts, its delta, its highest former limit;
-- what the lineage has spent, its limit.
local function standing(call, account)
  local own, all = account.state or call.lineage.state, call.lineage.state
  return table.concat({text(own.spent), text(own.limit), own.accepts, own.delta, text(own.highest), text(all.spent),
    text(all.limit)}, ' ')
end

local function write_account(account, ...)
  local state, fields = account.state, {}
  for cost, releases in pairs(account.tally) do
    fields[#fields + 1] = 'n:' .. cost
    fields[#fields + 1] = text(releases)
  end
  in_slices('HSET', account.key, fields, 2)
  redis.call('HSET', account.key, 'spent', text(state.spent), 'coined', text(state.coined),
    'asked', text(state.asked), ...)
end

local function number_of_terms(call, terms)
  if not terms.number then
    terms.number = redis.call('HGET', call.terms_key, terms.packed)
    if not terms.number then
      terms.number = text(redis.call('HLEN', call.terms_key) + #call.new_terms / 2 + 1)
      call.new_terms[#call.new_terms + 1] = terms.packed
      call.new_terms[#call.new_terms + 1] = terms.number
    end
  end
  return terms.number
end

local function write_receipts(call, asker)
  for place, entry in ipairs(call.entries) do
    local line, account = entry.line, entry.account
    redis.call('XADD', call.receipts, text(entry.number) .. '-' .. text(entry.own),
      'client', account.number, 'terms', number_of_terms(call, line.terms), 'microseconds', entry.time,
      'questions', table.concat(line.fresh), 'lineage_questions', text(line.of_lineage), 'service', asker.number,
      'link', place == 1 and call.link or '')
    if account.receipts then
      -- A mere index: that it takes no further entry must not leave the charge half done.
      redis.pcall('XADD', account.receipts, text(entry.own) .. '-' .. text(entry.number), '', '')
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
  check_right('XADD', call.receipts, '*', '', '')
  for _, key in ipairs({call.lineage.key, call.questions, call.terms_key}) do
    check_right('HSET', key, '', '')
  end
  for place, account in pairs(call.accounts) do
    if place > 0 and account.state then
      check_right('HSET', account.key, '', '')
      check_right('SADD', account.questions, '')
      account.crowded = account.kept > 0 and redis.call('HLEN', account.young) + account.kept > call.capacity
      if account.kept > 0 then
        check_right('HSET', account.young, '', '')
      end
      if account.crowded then
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
  in_slices('HSET', call.terms_key, call.new_terms, 2)
  for place, account in pairs(call.accounts) do
    if place > 0 and account.tally then
      write_account(account, 'seq', text(account.state.seq))
    end
  end
  if #call.entries > 0 then
    write_account(call.lineage)
  end
  for place, account in pairs(call.accounts) do
    if place > 0 then
      in_slices('SADD', account.questions, account.fresh, 1)
      write_requests(account)
    end
  end
  in_slices('HSET', call.questions, call.fresh, 2)
  count_write(asker)
  if #call.entries > 0 then
    -- Without which it takes no further charge.
    redis.call('HSET', call.lineage.key, 'seq', text(call.lineage.state.seq))
  end
end

local function charge_request(call, request, forced)
  local earlier, refused, letters, unpaid = decide(call, request, forced)
  if refused or unpaid then
    return refused or unpaid
  end
  local first, own = enter(call, request, earlier, letters)
  return {'charged', earlier or '', standing(call, request.payer.account), text(first), text(own), unpack(letters)}
end

-- Decides on each request for itself: one whose payer's keys cannot be read fails alone.
local function charge_each(keys, args, asker, forced)
  local call, replies, wrote = read_call(keys, args), {}, false
  if asker.id == '' or #call.link ~= 32 then
    malformed('a charge is a service\'s, and has a link')
  elseif text(asker.writes) ~= args[1] then
    return {'stale'}
  end
  for place, request in ipairs(call.requests) do
    local ok, reply, line = attempt(charge_request, call, request, forced)
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
  local _, refused, letters, unpaid = decide(call, call.requests[1] or malformed('nothing is asked'), false)
  if refused then
    return refused
  end
  return {'quoted', unpaid or '', unpack(letters)}
end

register_on_lineage('charge', {}, charge)
register_on_lineage('apply', EVEN_WHEN_FULL, apply)
register_on_lineage('quote', {'no-writes'}, quote)
