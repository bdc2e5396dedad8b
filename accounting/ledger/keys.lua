
-- API keys -------------------------------------------------------------------------------------------------------
-- A lineage's `keys` is a hash from the SHA-256 of an API key to whose it is and at which terms:
--
--   client ' ' expires ' ' scopes       expires: whole seconds since the epoch, or '-'; scopes: words between commas
--
-- and each client's account lists its own in the field `api_keys`: the digest, a byte for how long the terms are, and
-- these, 'expires scopes', for one key after the other. So a key that was slipped in, or made to last, is found out by
-- whoever compares both. A key ends by the store's own clock, at the very instant of the charge that it would pay for.

local MOST_KEYS = 16

local function split_keys(packed)
  local entries, at = {}, 1
  while at <= #packed do
    local length = string.byte(packed, at + 32)
    local terms = length and string.sub(packed, at + 33, at + 32 + length)
    local expires, scopes = string.match(terms or '', '^(%S+) (%S+)$')
    if not expires or #terms ~= length or not (expires == '-' or whole(expires)) then
      damaged('the API keys of an account cannot be read')
    end
    entries[#entries + 1] = {digest = string.sub(packed, at, at + 31), expires = expires, scopes = scopes}
    at = at + 33 + length
  end
  return entries
end

local function terms_of_key(key)
  return key.expires .. ' ' .. key.scopes
end

local function pack_keys(entries)
  local packed = {}
  for _, key in ipairs(entries) do
    local terms = terms_of_key(key)
    packed[#packed + 1] = key.digest .. string.char(#terms) .. terms
  end
  return table.concat(packed)
end

local function read_new_key(digest, expires, scopes)
  if #digest ~= 32 or not (expires == '-' or whole(expires)) or not string.find(scopes, '^[a-z,-]+$')
    or #expires + #scopes > 250 then
    malformed('an API key needs a digest of 32 bytes, when it expires, and scopes')
  end
  return {digest = digest, expires = expires, scopes = scopes}
end

local function write_key(api_keys, client, key)
  redis.call('HSET', api_keys, key.digest, client .. ' ' .. terms_of_key(key))
end

local function store_seconds()
  return tonumber(redis.call('TIME')[1])
end

-- Returns whose the key of this digest is, or nil; then nil or the refusal of what asks for this scope.
local function find_key(api_keys, digest, scope)
  local entry = redis.call('HGET', api_keys, digest)
  if not entry then
    return nil, {'unknown-key'}
  end
  local client, expires, scopes = string.match(entry, '^(%S+) (%S+) (%S+)$')
  if not client or not (expires == '-' or whole(expires)) then
    damaged('an API key cannot be read')
  end
  if expires ~= '-' and store_seconds() >= whole(expires) then
    return client, {'key-expired'}
  end
  if not string.find(',' .. scopes .. ',', ',' .. scope .. ',', 1, true) then
    return client, {'key-scope', scope}
  end
  return client, nil
end

-- Returns the refusal of a request of `client` that came with the key of this digest and asks for this scope, or nil.
-- Without a digest the client is known otherwise.
local function refuse_key(api_keys, digest, client, scope)
  if digest == '' then
    return nil
  end
  local owner, refused = find_key(api_keys, digest, scope)
  if owner ~= client then
    return {'unknown-key'}
  end
  return refused
end
