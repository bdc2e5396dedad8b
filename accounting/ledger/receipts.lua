
-- Receipts and acts: two chains for each lineage ---------------------------------------------------------------
-- A receipt says what a request was charged, an act what the owner changed. Each carries its number, from 1 on
-- without a gap, and the hash of the one before it, so that neither can be altered, dropped or slipped in
-- without breaking every hash after it. The account keeps the newest number and hash of each chain.
--
--   receipt's hash = SHA-256(hash before, SHA-256 of its terms, number, rows), numbers as 8 bytes, big-endian
--   act's hash     = SHA-256(hash before, number, and kind, subject, detail and time, each behind its length)

local GENESIS = '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0'

local function eight_bytes(value)
  return struct.pack('>I4I4', math.floor(value / 0x100000000), value % 0x100000000)
end

local function receipt_hash(previous, terms, number, rows)
  return sha256(previous .. terms .. eight_bytes(number) .. eight_bytes(rows))
end

-- Books: a lineage or a client, with the names of its keys `account`, `tally` and `receipts`, its own `name`, and
-- once they were read `state`, the account's fields, and `releases`, entries of its tally. A call reads each of
-- them once, keeps them as it changes them, and writes them by `write_books` before it replies.

local function check_format(stated)
  if stored_amount(stated or '1', 'the format') > FORMAT then
    error({newer = stated}, 0)
  end
end

local function read_account(key, what)
  local fields = redis.call('HMGET', key, 'limit', 'spent', 'accepts', 'revoked', 'seq', 'head', 'epoch', 'format',
    'delta')
  if not fields[1] then
    if redis.call('EXISTS', key) == 1 then
      damaged(what .. ' has no limit')
    end
    return nil
  end
  check_format(fields[8])
  local head = fields[6] or GENESIS
  if #head ~= 32 or not (fields[3] == 'any' or fields[3] == 'gaussian' or fields[3] == 'unproven') then
    damaged(what .. ' cannot be read')
  end
  return {
    limit = stored_amount(fields[1], what),
    spent = stored_amount(fields[2], what),
    accepts = fields[3],
    revoked = fields[4],
    seq = stored_amount(fields[5] or '0', what),
    head = head,
    epoch = fields[7] or '0',
    delta = fields[9] or '',
  }
end

-- An account that is gone while other keys of its own are there was lost: it must not begin anew, with nothing
-- spent. `others` are these keys.
local function check_unused(what, others)
  for first = 1, #others, SLICE do
    if redis.call('EXISTS', unpack(others, first, math.min(first + SLICE - 1, #others))) > 0 then
      damaged(what .. ' is lost: other keys of its own are there')
    end
  end
end

local function rest(keys, first)
  local others = {}
  for position = first, #keys do
    others[#others + 1] = keys[position]
  end
  return others
end

-- Reads what `write_receipt` is going to write to one of the books, so that it cannot fail half-way.
local function check_tally(books, cost)
  books.releases = books.releases or {}
  if not books.releases[cost] then
    local found = redis.call('HGET', books.tally, cost) or '0'
    books.releases[cost] = stored_amount(found, 'the tally of ' .. books.name)
  end
end

-- The books are written after the receipts, so that the right to write them is used before the first: the store refuses
-- nothing for want of memory or disk once a call has written, and a receipt that no account counts ends the lineage.
local function check_receipts(lineage)
  if not lineage.checked then
    if redis.call('XLEN', lineage.receipts) ~= lineage.state.seq then
      damaged('the number of receipts is not the one that the lineage counts')
    end
    redis.call('HSET', lineage.account, 'spent', text(lineage.state.spent))
    lineage.checked = true
  end
end

-- The client's stream is an index of the lineage's: its type is looked at (by XLEN, for to read its last entry takes
-- as long as to write one), and whether it takes a further entry is not: see `write_receipt`.
local function check_index(client)
  if not client.checked then
    redis.call('XLEN', client.receipts)
    client.checked = true
  end
end

local function pay(books, charged, rows)
  books.state.spent = books.state.spent + charged.price * rows
  books.releases[charged.cost] = books.releases[charged.cost] + rows
  books.unwritten = books.unwritten or {}
  books.unwritten[charged.cost] = true
end

-- Writes what one of the books has paid since it was last written, with further fields of its account: first its tally,
-- which nothing is decided by.
local function write_books(books, ...)
  local tallied = {}
  for cost in pairs(books.unwritten) do
    tallied[#tallied + 1] = cost
    tallied[#tallied + 1] = text(books.releases[cost])
  end
  set_fields(books.tally, tallied)
  redis.call('HSET', books.account, 'spent', text(books.state.spent), ...)
  books.unwritten = nil
end

-- Lets the lineage count its receipts, without which it takes no further charge: after all else that they stand for.
local function write_chain(lineage)
  redis.call('HSET', lineage.account, 'seq', text(lineage.state.seq), 'head', lineage.state.head)
end

-- Fails if a receipt was not appended: as damage if its number is not above all others', else as the store says.
local function check_appended(reply)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'equal or smaller', 1, true) then
      damaged('the receipts of the lineage take no further one')
    end
    error(reply, 0)
  end
end

-- Fails unless the books of both can take the charge; `client` is nil where the lineage alone pays.
local function check_books(lineage, client, charged, rows)
  check_receipts(lineage)
  check_tally(lineage, charged.cost)
  if client then
    check_tally(client, charged.cost)
    check_index(client)
  end
  local spent = math.max(lineage.state.spent, client and client.state.spent or 0)
  if spent + charged.price * rows > LARGEST then
    malformed('a charge takes an account past 2^53 - 1')
  end
end

-- Charges the lineage and the client, which is nil where the lineage alone pays, for so many rows at the model,
-- mechanism, cost and price that were `charged`, and writes the receipt, with `hash`. Asks nothing, so whoever calls
-- has decided, having read `state` of both, and writes the books of both before the call replies. Fails before its
-- first write or not at all. Returns the receipt's number, as text.
local function write_receipt(lineage, client, charged, rows, time, hash)
  local state = lineage.state
  local number, price = text(state.seq + 1), text(charged.price)
  check_books(lineage, client, charged, rows)
  -- The first write: it fails, and nothing else is done, if the stream has this number or a later one.
  local id = number .. '-0'
  local appended = redis.pcall('XADD', lineage.receipts, id,
    'lineage', charged.lineage, 'client', client and client.name or '', 'model', charged.model,
    'mechanism', charged.mechanism, 'cost', charged.cost, 'price', price, 'rows', text(rows),
    'total', rows == 1 and price or text(charged.price * rows), 'time', time, 'previous', state.head, 'hash', hash)
  check_appended(appended)
  state.seq, state.head = state.seq + 1, hash
  pay(lineage, charged, rows)
  if client then
    pay(client, charged, rows)
    -- A mere index: that it takes no further entry must not leave the charge half done. `verify` finds it.
    redis.pcall('XADD', client.receipts, id, 'lineage', charged.lineage)
  end
  return number
end

local function act_hash(previous, number, kind, subject, detail, time)
  local message = {previous, eight_bytes(number)}
  for _, field in ipairs({kind, subject, detail, time}) do
    message[#message + 1] = struct.pack('>I4', #field) .. field
  end
  return sha256(table.concat(message))
end

-- The time is the store's own: an act is the owner's, who may sit at any machine. Its first write is the act's,
-- which fails where the chain is damaged; so whoever calls writes what the act says after it.
local function write_act(account, acts, kind, subject, detail)
  local now = redis.call('TIME')
  local time = now[1] .. '.' .. string.rep('0', 6 - #now[2]) .. now[2]
  local fields = redis.call('HMGET', account, 'acts', 'acts_head', 'format')
  check_format(fields[3])
  local number = stored_amount(fields[1] or '0', 'the number of acts') + 1
  local previous = fields[2] or GENESIS
  local hash = act_hash(previous, number, kind, subject, detail, time)
  redis.call('XADD', acts, text(number) .. '-0', 'kind', kind, 'subject', subject, 'detail', detail,
    'time', time, 'previous', previous, 'hash', hash)
  redis.call('HSET', account, 'acts', text(number), 'acts_head', hash)
end
