// fused
namespace in_k_92c1cfa50c7e {  // so that the kernels of a Plan make one file
struct Args {
  float* t0;
  const fp16* t1[2];
  fp16* t2[2];
  const double* s0;
  i64 extent[1];
  i64 index;
  i64 index_step[1];
  i64 vectors;
  i64 first;
  i64 total;
  i64 pieces;
  i64 buckets;
  const i64* bucket_start;
  const i64* bucket_piece;
  const i64* piece_bucket;
  const i64* piece_elements;
  const i64* shift;
  i64 push;
  unsigned char* stage[2];
  const fp16* t1_far[2];
  i64 far_buckets[2];
  const i64* far_start[2];
  const i64* far_piece[2];
  Team team;
};

struct Spot { i64 c0; i64 piece; u32 slot; };

template <int V> DEVICE Spot spot(const Args& a, i64 i) {
  Spot at;
  at.c0 = i * V;
  return at;
}

// A bucket's begin, end and tensor, then how far the tensor lies from its place in a row in each buffer.
enum { SHIFTS = 3, WORDS = SHIFT + SHIFTS, RINGS = PUSH ? RANKS : 1 };

// What a lane has asked for: its word of the bucket after the next, its shifts of the next.
struct Ahead { i64 word, shift0; };

DEVICE volatile i64* words(int ring, u32 slot) {
  __shared__ i64 all[THREADS / 32][RINGS][3][WORDS];
  return all[threadIdx.x / 32][ring][slot];
}

// For the next bucket its shifts, for the one after that its place.
DEVICE Ahead ask(const Args& a, int ring, u32 slot, const Buckets& all, i64 after) {
  const i64 piece = words(ring, following(slot))[PIECE];
  return {bucket_word(all, after), LANE + 0 < SHIFTS ? a.shift[piece * SHIFTS + LANE + 0] : 0};
}

// Puts what was asked for in its place; the slot of the next bucket.
DEVICE u32 settle(int ring, u32 slot, const Ahead& of) {
  slot = following(slot);
  __syncwarp();
  if (LANE + 0 < SHIFTS) words(ring, slot)[SHIFT + LANE + 0] = of.shift0;
  if (LANE <= PIECE) words(ring, following(slot))[LANE] = of.word;
  __syncwarp();
  return slot;
}

// Begins with bucket `first` in slot 0; `second` follows.
DEVICE void prepare(const Args& a, int ring, const Buckets& all, i64 first, i64 second) {
  const Ahead of = {bucket_word(all, first)};
  settle(ring, 1, of);
  settle(ring, 2, ask(a, ring, 2, all, second));
}

DEVICE Buckets far_of(const Args& a, int p) {
  const int to = (RANK + p) % RANKS;
  return {a.far_start[to], a.far_piece[to], a.far_buckets[to]};
}

struct Kept0 { float r1; Divisor d4; };
template <int V, int U, How HOW, class Kept>
DEVICE void phase0(const Args& a, const Spot (&at)[U], const bool (&live)[U], const Source& from, const Kept& kept) {
  Pack<float, V> x0[U];
  Pack<fp16, V> x2[U][RANKS];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(x0[u], a.t0 + at[u].c0 + words(0, at[u].slot)[SHIFT + 0]);
    fetch(x2[u][(RANK + 0) % RANKS], a.t1[(RANK + 0) % RANKS] + at[u].c0 + words(0, at[u].slot)[SHIFT + 1]);
    if constexpr (HOW == PULL) fetch(x2[u][(RANK + 1) % RANKS], a.t1[(RANK + 1) % RANKS] + at[u].c0 + words(0, at[u].slot)[SHIFT + 1]);
  }
  if constexpr (HOW == STAGED) await_push(a.team, from.number);
  if constexpr (HOW != PULL) {
#pragma unroll
    for (int u = 0; u < U; ++u) if (live[u]) {
      take(x2[u][(RANK + 1) % RANKS], (fp16*)(staged(a.stage[RANK], from.number, (RANK + 1) % RANKS, THREADS * UNROLL * 16)) + from.first + u * from.step);
    }
  }
  const float r1 = kept.r1;
  const Divisor d4 = kept.d4;
  const float r4 = d4.d;
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    Pack<float, V> y7;
    Pack<fp16, V> y8;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float r0 = up(x0[u].at[j]);  // w
      const float r2 = rounded<fp16>(up(x2[u][0].at[j]) + up(x2[u][1].at[j]));  // total_rs
      const float r3 = r2;  // cast_1
      const float r5 = over(r3, d4);  // G
      const float r6 = r1 * r5;  // mul_1
      const float r7 = r0 - r6;  // sub_1
      const float r8 = rounded<fp16>(r7);  // cast_2
      down(r7, y7.at[j]);
      down(r8, y8.at[j]);
    }
    put(a.t0 + at[u].c0 + words(0, at[u].slot)[SHIFT + 0], y7);
    put(a.t2[(RANK + 0) % RANKS] + at[u].c0 + words(0, at[u].slot)[SHIFT + 2], y8);
    if (!DEFER) put(a.t2[(RANK + 1) % RANKS] + at[u].c0 + words(0, at[u].slot)[SHIFT + 2], y8);
  }
}
template <int V, int U, int SPANS>
DEVICE u32 push0(const Args& a, u32 number, u32 slot, i64 s, i64 warps) {
  Ahead of[RANKS];
#pragma unroll
  for (int p = 1; p < RANKS; ++p) of[p] = ask(a, p, slot, far_of(a, p), (s + 2 * warps) / SPANS);
#pragma unroll
  for (int p = 1; p < RANKS; ++p) {
    const int to = (RANK + p) % RANKS;
    volatile i64* there = words(p, slot);
    const i64 begin = there[BEGIN] + s % SPANS * (32 * V * U), left = there[END] - begin;
    const i64 count = left < 32 * V * U ? left : 32 * V * U;
    deliver<V, U>((fp16*)(staged(a.stage[to], number, RANK, THREADS * UNROLL * 16)) + threadIdx.x / 32 * (32 * V * U), a.t1_far[to] + begin + there[SHIFT + 1], count);
  }
  u32 next = slot;
#pragma unroll
  for (int p = 1; p < RANKS; ++p) next = settle(p, slot, of[p]);
  return next;
}
template <int V, int U>
DEVICE void share0(const Args& a, const Spot (&at)[U], const bool (&live)[U]) {
  Pack<fp16, V> z0[U];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(z0[u], a.t2[RANK] + at[u].c0 + words(0, at[u].slot)[SHIFT + 2]);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    put(a.t2[(RANK + 1) % RANKS] + at[u].c0 + words(0, at[u].slot)[SHIFT + 2], z0[u]);
  }
}

extern "C" __global__ void __launch_bounds__(BOUNDS) k_92c1cfa50c7e(const __grid_constant__ Args a) {
  const u32 epoch = a.team.state->epoch[blockIdx.x];
  u32 met = epoch;
  if (a.team.meets & 1) announce_start(a.team, ++met);
  const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x, threads = (i64)gridDim.x * THREADS;
  const float r1 = (float)*a.s0;  // lr
  const float r4 = 2.0f;
  if (a.team.meets & 1) await_all(a.team, met);

  KEPT Kept0 kept0;
  if (!PUSH || threadIdx.x == 0) kept0 = {r1, divisor(r4)};
  if (PUSH) __syncthreads();
  {
    if (PUSH && a.push) {
      enum { SPAN = 32 * 8 * UNROLL, SPANS = (1024 + SPAN - 1) / SPAN };
      const i64 warp = thread / 32, warps = threads / 32;
      u32 slot = 0;
      prepare(a, 0, {a.bucket_start, a.bucket_piece, a.buckets}, warp / SPANS, (warp + warps) / SPANS);
      const int rounds = (int)((most(a.far_buckets) * SPANS + warps - 1) / warps);
      const u32 before = met;
      u32 far = 0;
      for (int p = 1; p < RANKS; ++p) prepare(a, p, far_of(a, p), warp / SPANS, (warp + warps) / SPANS);
      for (int n = -1; n < rounds; ++n) {
        const i64 s = warp + n * warps;
        Ahead of;
        if (n >= 0) of = ask(a, 0, slot, {a.bucket_start, a.bucket_piece, a.buckets}, (s + 2 * warps) / SPANS);
        const u32 number = before + 1 + (u32)n;
        if (n + 1 < rounds) {
          far = push0<8, UNROLL, SPANS>(a, number + 1, far, s + warps, warps);
          announce(a.team, number + 1);
        }
        if (n < 0) continue;
        const u32 next = settle(0, slot, of);
        volatile i64* here = words(0, slot);
        const i64 begin = here[BEGIN], piece = here[PIECE], low = begin + (s % SPANS) * SPAN;
        const i64 left = here[END] - low, count = left < SPAN ? left : SPAN;
        const bool by_vectors = a.vectors && ((begin + here[SHIFT + 0]) | (begin + here[SHIFT + 1]) | (begin + here[SHIFT + 2])) % 8 == 0;
        if (by_vectors && count == SPAN) {
          const i64 i = threadIdx.x % 32;
          Spot at[UNROLL];
          bool live[UNROLL];
#pragma unroll
          for (int u = 0; u < UNROLL; ++u) {
            live[u] = true;
            at[u] = {low + (i + u * 32) * 8, piece, slot};
          }
          const Source from = {number, (int)(threadIdx.x / 32 * SPAN + i * 8), 32 * 8};
          phase0<8, UNROLL, STAGED>(a, at, live, from, kept0);
        } else {
          await_push(a.team, number);
          const i64 vectors = by_vectors && count > 0 ? count / 8 : 0;
          for (i64 i = threadIdx.x % 32; i < vectors; i += 32) {
            const Source from = {number, (int)(threadIdx.x / 32 * SPAN + i * 8), 0};
            Spot at[1] = {{low + i * 8, piece, slot}};
            const bool live[1] = {true};
            phase0<8, 1, READY>(a, at, live, from, kept0);
          }
          for (i64 i = vectors * 8 + threadIdx.x % 32; i < count; i += 32) {
            const Source from = {number, (int)(threadIdx.x / 32 * SPAN + i), 0};
            Spot at[1] = {{low + i, piece, slot}};
            const bool live[1] = {true};
            phase0<1, 1, READY>(a, at, live, from, kept0);
          }
        }
        slot = next;
      }
      met = before + (u32)rounds;
    } else {
      enum { SPAN = 32 * 8 * UNROLL, SPANS = (1024 + SPAN - 1) / SPAN };
      const i64 warp = thread / 32, warps = threads / 32;
      u32 slot = 0;
      prepare(a, 0, {a.bucket_start, a.bucket_piece, a.buckets}, warp / SPANS, (warp + warps) / SPANS);
      for (i64 s = warp; s < a.buckets * SPANS; s += warps) {
        const Ahead of = ask(a, 0, slot, {a.bucket_start, a.bucket_piece, a.buckets}, (s + 2 * warps) / SPANS);
        volatile i64* here = words(0, slot);
        const i64 begin = here[BEGIN], piece = here[PIECE], low = begin + (s % SPANS) * SPAN;
        const i64 left = here[END] - low, count = left < SPAN ? left : SPAN;
        const bool by_vectors = a.vectors && ((begin + here[SHIFT + 0]) | (begin + here[SHIFT + 1]) | (begin + here[SHIFT + 2])) % 8 == 0;
        if (UNROLL > 1 && by_vectors && count == SPAN) {
          const i64 i = threadIdx.x % 32;
          Spot at[UNROLL];
          bool live[UNROLL];
#pragma unroll
          for (int u = 0; u < UNROLL; ++u) {
            live[u] = true;
            at[u] = {low + (i + u * 32) * 8, piece, slot};
          }
          phase0<8, UNROLL, PULL>(a, at, live, Source(), kept0);
        } else {
          const i64 vectors = by_vectors && count > 0 ? count / 8 : 0;
          for (i64 i = threadIdx.x % 32; i < vectors; i += 32) {
            Spot at[1] = {{low + i * 8, piece, slot}};
            const bool live[1] = {true};
            phase0<8, 1, PULL>(a, at, live, Source(), kept0);
          }
          for (i64 i = vectors * 8 + threadIdx.x % 32; i < count; i += 32) {
            Spot at[1] = {{low + i, piece, slot}};
            const bool live[1] = {true};
            phase0<1, 1, PULL>(a, at, live, Source(), kept0);
          }
        }
        slot = settle(0, slot, of);
      }
    }
  }
  if (DEFER) {  // reading all peers first, then writing to them, keeps both ways of a link busy
    enum { SPAN = 32 * 8 * UNROLL, SPANS = (1024 + SPAN - 1) / SPAN };
    const i64 warp = thread / 32, warps = threads / 32;
    u32 slot = 0;
    prepare(a, 0, {a.bucket_start, a.bucket_piece, a.buckets}, warp / SPANS, (warp + warps) / SPANS);
    for (i64 s = warp; s < a.buckets * SPANS; s += warps) {
      const Ahead of = ask(a, 0, slot, {a.bucket_start, a.bucket_piece, a.buckets}, (s + 2 * warps) / SPANS);
      volatile i64* here = words(0, slot);
      const i64 begin = here[BEGIN], piece = here[PIECE], low = begin + (s % SPANS) * SPAN;
      const i64 left = here[END] - low, count = left < SPAN ? left : SPAN;
      const bool by_vectors = a.vectors && ((begin + here[SHIFT + 0]) | (begin + here[SHIFT + 1]) | (begin + here[SHIFT + 2])) % 8 == 0;
      if (UNROLL > 1 && by_vectors && count == SPAN) {
        const i64 i = threadIdx.x % 32;
        Spot at[UNROLL];
        bool live[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          live[u] = true;
          at[u] = {low + (i + u * 32) * 8, piece, slot};
        }
        share0<8, UNROLL>(a, at, live);
      } else {
        const i64 vectors = by_vectors && count > 0 ? count / 8 : 0;
        for (i64 i = threadIdx.x % 32; i < vectors; i += 32) {
          Spot at[1] = {{low + i * 8, piece, slot}};
          const bool live[1] = {true};
          share0<8, 1>(a, at, live);
        }
        for (i64 i = vectors * 8 + threadIdx.x % 32; i < count; i += 32) {
          Spot at[1] = {{low + i, piece, slot}};
          const bool live[1] = {true};
          share0<1, 1>(a, at, live);
        }
      }
      slot = settle(0, slot, of);
    }
  }

  if (a.team.meets & 2) {
    announce(a.team, ++met);
    await_all(a.team, met);
  }
  if (threadIdx.x == 0) a.team.state->epoch[blockIdx.x] = met;
}
}
