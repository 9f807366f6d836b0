// fused
namespace in_k_c9ed1a65636a {  // so that the kernels of a Plan make one file
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
  const i64* t0_shift;
  const i64* t1_shift;
  const i64* t2_shift;
  Team team;
};

struct Spot { i64 c0; i64 piece, shift0, shift1, shift2; };

template <int V> DEVICE Spot spot(const Args& a, i64 i) {
  Spot at;
  at.c0 = i * V;
  return at;
}

struct Bucket { i64 begin, end, piece; };

DEVICE Bucket bucket(const Args& a, i64 b) {
  if (b >= a.buckets) return {};
  return {a.bucket_start[b], a.bucket_start[b + 1], a.bucket_piece[b]};
}

template <int V, int U>
DEVICE void phase0(const Args& a, const Spot (&at)[U], const bool (&live)[U], const float r1, const float r4) {
  Pack<float, V> x0[U];
  Pack<fp16, V> x2[U][RANKS];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(x0[u], a.t0 + at[u].c0 + at[u].shift0);
    fetch(x2[u][(RANK + 0) % RANKS], a.t1[(RANK + 0) % RANKS] + at[u].c0 + at[u].shift1);
    fetch(x2[u][(RANK + 1) % RANKS], a.t1[(RANK + 1) % RANKS] + at[u].c0 + at[u].shift1);
  }
  const Divisor d4 = divisor(r4);
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
    put(a.t0 + at[u].c0 + at[u].shift0, y7);
    put(a.t2[(RANK + 0) % RANKS] + at[u].c0 + at[u].shift2, y8);
    if (!DEFER) put(a.t2[(RANK + 1) % RANKS] + at[u].c0 + at[u].shift2, y8);
  }
}
template <int V, int U>
DEVICE void share0(const Args& a, const Spot (&at)[U], const bool (&live)[U]) {
  Pack<fp16, V> z0[U];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(z0[u], a.t2[RANK] + at[u].c0 + at[u].shift2);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    put(a.t2[(RANK + 1) % RANKS] + at[u].c0 + at[u].shift2, z0[u]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) k_c9ed1a65636a(const __grid_constant__ Args a) {
  const u32 epoch = a.team.state->epoch[blockIdx.x];
  u32 met = epoch;
  if (a.team.meets & 1) announce_start(a.team, ++met);
  const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x, threads = (i64)gridDim.x * THREADS;
  const float r1 = (float)*a.s0;  // lr
  const float r4 = 2.0f;
  if (a.team.meets & 1) await_all(a.team, met);

  Bucket next0 = bucket(a, thread / 32);
  for (i64 b = thread / 32; b < a.buckets; b += threads / 32) {
    const i64 begin = next0.begin, end = next0.end, piece = next0.piece;
    next0 = bucket(a, b + threads / 32);
    const i64 shift0 = a.t0_shift[piece];
    const i64 shift1 = a.t1_shift[piece];
    const i64 shift2 = a.t2_shift[piece];
    i64 rest = begin;
    if (a.vectors && ((begin + shift0) | (begin + shift1) | (begin + shift2)) % 8 == 0) {
      const i64 vectors = (end - begin) / 8;
      for (i64 i = threadIdx.x % 32; i < vectors; i += 32 * UNROLL) {
        Spot at[UNROLL];
        bool live[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
          live[u] = u == 0 || i + u * 32 < vectors;
          at[u].c0 = begin + (i + u * 32) * 8;
          at[u].piece = piece;
          at[u].shift0 = shift0;
          at[u].shift1 = shift1;
          at[u].shift2 = shift2;
        }
        phase0<8, UNROLL>(a, at, live, r1, r4);
      }
      rest += vectors * 8;
    }
    for (i64 i = rest + threadIdx.x % 32; i < end; i += 32) {
      Spot at[1] = {spot<1>(a, i)};
      at[0].piece = piece;
      at[0].shift0 = shift0;
      at[0].shift1 = shift1;
      at[0].shift2 = shift2;
      const bool live[1] = {true};
      phase0<1, 1>(a, at, live, r1, r4);
    }
  }
  if (DEFER) {  // reading all peers first, then writing to them, keeps both ways of a link busy
    Bucket next0 = bucket(a, thread / 32);
    for (i64 b = thread / 32; b < a.buckets; b += threads / 32) {
      const i64 begin = next0.begin, end = next0.end, piece = next0.piece;
      next0 = bucket(a, b + threads / 32);
      const i64 shift0 = a.t0_shift[piece];
      const i64 shift1 = a.t1_shift[piece];
      const i64 shift2 = a.t2_shift[piece];
      i64 rest = begin;
      if (a.vectors && ((begin + shift0) | (begin + shift1) | (begin + shift2)) % 8 == 0) {
        const i64 vectors = (end - begin) / 8;
        for (i64 i = threadIdx.x % 32; i < vectors; i += 32 * UNROLL) {
          Spot at[UNROLL];
          bool live[UNROLL];
#pragma unroll
          for (int u = 0; u < UNROLL; ++u) {
            live[u] = u == 0 || i + u * 32 < vectors;
            at[u].c0 = begin + (i + u * 32) * 8;
            at[u].piece = piece;
            at[u].shift0 = shift0;
            at[u].shift1 = shift1;
            at[u].shift2 = shift2;
          }
          share0<8, UNROLL>(a, at, live);
        }
        rest += vectors * 8;
      }
      for (i64 i = rest + threadIdx.x % 32; i < end; i += 32) {
        Spot at[1] = {spot<1>(a, i)};
        at[0].piece = piece;
        at[0].shift0 = shift0;
        at[0].shift1 = shift1;
        at[0].shift2 = shift2;
        const bool live[1] = {true};
        share0<1, 1>(a, at, live);
      }
    }
  }

  if (a.team.meets & 2) {
    announce(a.team, ++met);
    await_all(a.team, met);
  }
  if (threadIdx.x == 0) a.team.state->epoch[blockIdx.x] = met;
}
}
