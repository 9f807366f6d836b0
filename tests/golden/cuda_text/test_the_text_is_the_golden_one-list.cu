// list
namespace in_k_30aa7541a979 {  // so that the kernels of a Plan make one file
struct Args {
  const fp16* t0;
  fp16* t1[2];
  float* t2;
  i64 extent[1];
  i64 index;
  i64 index_step[1];
  i64 vectors;
  i64 first;
  i64 total;
  u64* partial;
  u64* exchange[2];
  i64 half;
  i64 a0_at;
  i64 a0_rows;
  i64 a0_count;
  i64 a0_partial;
  i64 pieces;
  i64 buckets;
  const i64* bucket_start;
  const i64* bucket_piece;
  const i64* piece_bucket;
  const i64* piece_elements;
  Team team;
};

struct Spot { i64 c0; i64 piece; u32 slot; };

template <int V> DEVICE Spot spot(const Args& a, i64 i) {
  Spot at;
  at.c0 = i * V;
  return at;
}

// A bucket's begin, end and tensor, then how far the tensor lies from its place in a row in each buffer.
enum { SHIFTS = 0, WORDS = SHIFT + SHIFTS, RINGS = 1 };

// What a lane has asked for: its word of the bucket after the next, its shifts of the next.
struct Ahead { i64 word; };

DEVICE volatile i64* words(int ring, u32 slot) {
  __shared__ i64 all[THREADS / 32][RINGS][3][WORDS];
  return all[threadIdx.x / 32][ring][slot];
}

// For the next bucket its shifts, for the one after that its place.
DEVICE Ahead ask(const Args& a, int ring, u32 slot, const Buckets& all, i64 after) {
  const i64 piece = words(ring, following(slot))[PIECE];
  return {bucket_word(all, after)};
}

// Puts what was asked for in its place; the slot of the next bucket.
DEVICE u32 settle(int ring, u32 slot, const Ahead& of) {
  slot = following(slot);
  __syncwarp();

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
DEVICE float* finished0() { __shared__ float all[FINISHED]; return all; }

template <int V, int U>
DEVICE void phase0(const Args& a, const Spot (&at)[U], const bool (&live)[U], double& sum0) {
  Pack<fp16, V> x0[U];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(x0[u], a.t0 + at[u].c0);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float r0 = up(x0[u].at[j]);
      const float r1 = r0;
      sum0 = Sum::of(sum0, (double)r1 * (double)r1);
    }
  }
}

template <int V, int U>
DEVICE void phase1(const Args& a, const Spot (&at)[U], const bool (&live)[U], const double* parts0) {
  Pack<fp16, V> x2[U];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(x2[u], a.t0 + at[u].c0);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    const float r4 = at[u].piece < FINISHED ? finished0()[at[u].piece] : Narrow<float>::of(sqrt(combined<Sum>(parts0, at[u].piece, a.a0_rows, RANKS)));
    Pack<fp16, V> y5;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float r2 = up(x2[u].at[j]);
      const float r3 = r2;
      const float r5 = r3 / r4;
      const float r6 = rounded<fp16>(r5);
      down(r6, y5.at[j]);
    }
    put(a.t1[(RANK + 0) % RANKS] + at[u].c0, y5);
    if (!DEFER) put(a.t1[(RANK + 1) % RANKS] + at[u].c0, y5);
  }
}
template <int V, int U>
DEVICE void share1(const Args& a, const Spot (&at)[U], const bool (&live)[U]) {
  Pack<fp16, V> z0[U];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(z0[u], a.t1[RANK] + at[u].c0);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    put(a.t1[(RANK + 1) % RANKS] + at[u].c0, z0[u]);
  }
}
DEVICE void pieces1(const Args& a, const Spot (&at)[1], const double* parts0) {
  enum { V = 1, U = 1, u = 0, j = 0 };
  const float r7 = Narrow<float>::of(sqrt(combined<Sum>(parts0, at[0].piece, a.a0_rows, RANKS)));
  Pack<float, 1> y1;
  if (j == 0) down(r7, y1.at[0]);
  if (at[u].c0 == 0) put(a.t2 + at[u].piece, y1);
}

extern "C" __global__ void __launch_bounds__(BOUNDS) k_30aa7541a979(const __grid_constant__ Args a) {
  const u32 epoch = a.team.state->epoch[blockIdx.x];
  u32 met = epoch;
  if (a.team.meets & 1) announce_start(a.team, ++met);
  const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x, threads = (i64)gridDim.x * THREADS;
  const u32 exchanges = a.team.state->exchanges, turn = a.team.state->turn;
  const i64 half = turn & 1 ? a.half : 0;
  const double* parts0 = (const double*)(a.exchange[RANK] + half + a.a0_at);
  if (a.team.meets & 1) await_all(a.team, met);

  // phase 0
  {
    const i64 warp = thread / 32, warps = threads / 32;
    u32 slot = 0;
    prepare(a, 0, {a.bucket_start, a.bucket_piece, a.buckets}, warp, warp + warps);
    for (i64 b = warp; b < a.buckets; b += warps) {
      const Ahead of = ask(a, 0, slot, {a.bucket_start, a.bucket_piece, a.buckets}, b + 2 * warps);
      volatile i64* here = words(0, slot);
      const i64 begin = here[BEGIN], end = here[END], piece = here[PIECE];
      double sum0 = Sum::none(double());
      i64 rest = begin;
      if (a.vectors && begin % 8 == 0) {
        const i64 vectors = (end - begin) / 8;
        for (i64 i = threadIdx.x % 32; i < vectors; i += 32 * UNROLL) {
          Spot at[UNROLL];
          bool live[UNROLL];
#pragma unroll
          for (int u = 0; u < UNROLL; ++u) {
            live[u] = u == 0 || i + u * 32 < vectors;
            at[u] = {begin + (i + u * 32) * 8, piece, slot};
          }
          phase0<8, UNROLL>(a, at, live, sum0);
        }
        rest += vectors * 8;
      }
      for (i64 i = rest + threadIdx.x % 32; i < end; i += 32) {
        Spot at[1] = {{i, piece, slot}};
        const bool live[1] = {true};
        phase0<1, 1>(a, at, live, sum0);
      }
      sum0 = fold_warp<Sum>(sum0);
      if (threadIdx.x % 32 == 0) ((double*)(a.partial + a.a0_partial))[b] = sum0;
      slot = settle(0, slot, of);
    }
  }
  if (arrive(a.team.state)) {
    for (int item = threadIdx.x / 32; item < 1 * a.a0_rows; item += THREADS / 32) {
      const int piece = item / 1;
      const i64 from = a.piece_bucket[piece], to = a.piece_bucket[piece + 1];
      if (item % 1 == 0) {
        const double sum = fold_run<Sum>((const double*)(a.partial + a.a0_partial), from, to);
        if (threadIdx.x % 32 == 0) { ((double*)(a.exchange[0] + half + a.a0_at))[RANK * a.a0_rows + piece] = sum; ((double*)(a.exchange[1] + half + a.a0_at))[RANK * a.a0_rows + piece] = sum; }
      }
    }
    if (threadIdx.x == 0) {
      a.team.state->exchanges = exchanges + 1;
      a.team.state->turn = turn + 1;
    }
    announce_exchange(a.team, exchanges + 1, true);
  }
  await_exchange(a.team, exchanges + 1, true);

  // phase 1
  {
    for (i64 piece = threadIdx.x; piece < a.pieces && piece < FINISHED; piece += THREADS) {
      finished0()[piece] = Narrow<float>::of(sqrt(combined<Sum>(parts0, piece, a.a0_rows, RANKS)));
    }
    __syncthreads();
    enum { SPAN = 32 * 8 * UNROLL, SPANS = (1024 + SPAN - 1) / SPAN };
    const i64 warp = thread / 32, warps = threads / 32;
    u32 slot = 0;
    prepare(a, 0, {a.bucket_start, a.bucket_piece, a.buckets}, warp / SPANS, (warp + warps) / SPANS);
    for (i64 s = warp; s < a.buckets * SPANS; s += warps) {
      const Ahead of = ask(a, 0, slot, {a.bucket_start, a.bucket_piece, a.buckets}, (s + 2 * warps) / SPANS);
      volatile i64* here = words(0, slot);
      const i64 begin = here[BEGIN], piece = here[PIECE], low = begin + (s % SPANS) * SPAN;
      const i64 left = here[END] - low, count = left < SPAN ? left : SPAN;
      const bool by_vectors = a.vectors && begin % 8 == 0;
      if (UNROLL > 1 && by_vectors && count == SPAN) {
        const i64 i = threadIdx.x % 32;
        Spot at[UNROLL];
        bool live[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          live[u] = true;
          at[u] = {low + (i + u * 32) * 8, piece, slot};
        }
        phase1<8, UNROLL>(a, at, live, parts0);
      } else {
        const i64 vectors = by_vectors && count > 0 ? count / 8 : 0;
        for (i64 i = threadIdx.x % 32; i < vectors; i += 32) {
          Spot at[1] = {{low + i * 8, piece, slot}};
          const bool live[1] = {true};
          phase1<8, 1>(a, at, live, parts0);
        }
        for (i64 i = vectors * 8 + threadIdx.x % 32; i < count; i += 32) {
          Spot at[1] = {{low + i, piece, slot}};
          const bool live[1] = {true};
          phase1<1, 1>(a, at, live, parts0);
        }
      }
      slot = settle(0, slot, of);
    }
  }
  for (i64 piece = thread; piece < a.pieces; piece += threads) {
    Spot at[1] = {};
    at[0].piece = piece;
    pieces1(a, at, parts0);
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
      const bool by_vectors = a.vectors && begin % 8 == 0;
      if (UNROLL > 1 && by_vectors && count == SPAN) {
        const i64 i = threadIdx.x % 32;
        Spot at[UNROLL];
        bool live[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          live[u] = true;
          at[u] = {low + (i + u * 32) * 8, piece, slot};
        }
        share1<8, UNROLL>(a, at, live);
      } else {
        const i64 vectors = by_vectors && count > 0 ? count / 8 : 0;
        for (i64 i = threadIdx.x % 32; i < vectors; i += 32) {
          Spot at[1] = {{low + i * 8, piece, slot}};
          const bool live[1] = {true};
          share1<8, 1>(a, at, live);
        }
        for (i64 i = vectors * 8 + threadIdx.x % 32; i < count; i += 32) {
          Spot at[1] = {{low + i, piece, slot}};
          const bool live[1] = {true};
          share1<1, 1>(a, at, live);
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
