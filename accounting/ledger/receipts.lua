
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

-- `lineage` holds account, tally and receipts, the names of its keys; `client` the same of a client, and name.
-- Charges both accounts and writes the receipt; asks nothing, so whoever calls has decided.
local function write_receipt(lineage, client, charged, number, previous, hash)
  local total, rows = text(charged.price * charged.rows), text(charged.rows)
  redis.call('HINCRBY', lineage.account, 'spent', total)
  redis.call('HINCRBY', lineage.tally, charged.cost, rows)
  if client.account then
    redis.call('HINCRBY', client.account, 'spent', total)
    redis.call('HINCRBY', client.tally, charged.cost, rows)
  end
  redis.call('HSET', lineage.account, 'seq', text(number), 'head', hash)
  local id = text(number) .. '-0'
  redis.call('XADD', lineage.receipts, id,
    'lineage', charged.lineage, 'client', client.name, 'model', charged.model, 'mechanism', charged.mechanism,
    'cost', charged.cost, 'price', text(charged.price), 'rows', rows, 'total', total, 'time', charged.time,
    'previous', previous, 'hash', hash)
  if client.account then
    redis.call('XADD', client.receipts, id, 'lineage', charged.lineage)
  end
end

local function act_hash(previous, number, kind, subject, detail, time)
  local message = {previous, eight_bytes(number)}
  for _, field in ipairs({kind, subject, detail, time}) do
    message[#message + 1] = struct.pack('>I4', #field) .. field
  end
  return sha256(table.concat(message))
end

-- The time is the store's own: an act is the owner's, who may sit at any machine.
local function write_act(account, acts, kind, subject, detail)
  local now = redis.call('TIME')
  local time = now[1] .. '.' .. string.rep('0', 6 - #now[2]) .. now[2]
  local number = redis.call('HINCRBY', account, 'acts', 1)
  local previous = redis.call('HGET', account, 'acts_head') or GENESIS
  local hash = act_hash(previous, number, kind, subject, detail, time)
  redis.call('HSET', account, 'acts_head', hash)
  redis.call('XADD', acts, text(number) .. '-0', 'kind', kind, 'subject', subject, 'detail', detail,
    'time', time, 'previous', previous, 'hash', hash)
end
