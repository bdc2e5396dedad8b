
-- SHA-256 (FIPS 180-4), for the store's scripting offers SHA-1 alone. Words are the signed 32-bit numbers of the
-- `bit` library, which is not there yet while the library is loaded; sums of a few of them are exact in a double
-- and `tobit` brings them back modulo 2^32.

local sha256
do
  -- The first 32 bits of the fractional parts of the square and cube roots of the first primes.
  local INITIAL = {
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
  }
  local K = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
  }

  local function compress(state, message, first)
    local band, bxor, ror, rshift, tobit = bit.band, bit.bxor, bit.ror, bit.rshift, bit.tobit
    local w = {struct.unpack('>i4i4i4i4i4i4i4i4i4i4i4i4i4i4i4i4', message, first)}
    for t = 17, 64 do
      local x, y = w[t - 15], w[t - 2]
      w[t] = tobit(w[t - 16] + bxor(ror(x, 7), ror(x, 18), rshift(x, 3))
        + w[t - 7] + bxor(ror(y, 17), ror(y, 19), rshift(y, 10)))
    end
    local a, b, c, d, e, f, g, h = unpack(state)
    for t = 1, 64 do
      local t1 = h + bxor(ror(e, 6), ror(e, 11), ror(e, 25)) + bxor(g, band(e, bxor(f, g))) + K[t] + w[t]
      local t2 = bxor(ror(a, 2), ror(a, 13), ror(a, 22)) + bxor(band(a, bxor(b, c)), band(b, c))
      h, g, f, e, d, c, b, a = g, f, e, tobit(d + t1), c, b, a, tobit(t1 + t2)
    end
    local added = {a, b, c, d, e, f, g, h}
    for word = 1, 8 do
      state[word] = tobit(state[word] + added[word])
    end
  end

  function sha256(message)
    local padded = message .. '\128' .. string.rep('\0', (55 - #message) % 64)
      .. struct.pack('>I4I4', math.floor(#message / 0x20000000), #message * 8 % 0x100000000)
    local state = {unpack(INITIAL)}
    for first = 1, #padded, 64 do
      compress(state, padded, first)
    end
    for word = 1, 8 do
      state[word] = bit.tobit(state[word])
    end
    return struct.pack('>i4i4i4i4i4i4i4i4', unpack(state))
  end
end
