// lamb
namespace in_k_1d38bd14de54 {  // so that the kernels of a Plan make one file
struct Args {
  const float* t0[2];
  float* t1;
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
  i64 a1_at;
  i64 a0_rows;
  i64 a1_rows;
  i64 a0_count;
  i64 a1_count;
  i64 a0_partial;
  i64 a1_partial;
  Team team;
};

struct Spot { i64 c0; };

template <int V> DEVICE Spot spot(const Args& a, i64 i) {
  Spot at;
  at.c0 = i * V;
  return at;
}

template <int V, int U>
DEVICE void phase0(const Args& a, const Spot (&at)[U], const bool (&live)[U], double& sum0, double& sum1) {
  Pack<float, V> x0[U][RANKS];
  Pack<float, V> x1[U];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    fetch(x0[u][(RANK + 0) % RANKS], a.t0[(RANK + 0) % RANKS] + at[u].c0);
    fetch(x0[u][(RANK + 1) % RANKS], a.t0[(RANK + 1) % RANKS] + at[u].c0);
    get(x1[u], a.t1 + at[u].c0);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float r0 = up(x0[u][0].at[j]) + up(x0[u][1].at[j]);
      sum0 = Sum::of(sum0, (double)r0 * (double)r0);
      const float r1 = up(x1[u].at[j]);
      sum1 = Max::of(sum1, (double)r1);
    }
  }
}

template <int V, int U>
DEVICE void phase1(const Args& a, const Spot (&at)[U], const bool (&live)[U], const float r3) {
  Pack<float, V> x4[U];
  Pack<float, V> x5[U][RANKS];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(x4[u], a.t1 + at[u].c0);
    fetch(x5[u][(RANK + 0) % RANKS], a.t0[(RANK + 0) % RANKS] + at[u].c0);
    fetch(x5[u][(RANK + 1) % RANKS], a.t0[(RANK + 1) % RANKS] + at[u].c0);
  }
  const Divisor d3 = divisor(r3);
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    Pack<float, V> y4;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float r4 = up(x4[u].at[j]);
      const float r5 = up(x5[u][0].at[j]) + up(x5[u][1].at[j]);
      const float r6 = over(r5, d3);
      const float r7 = r4 - r6;
      down(r7, y4.at[j]);
    }
    put(a.t1 + at[u].c0, y4);
  }
}

extern "C" __global__ void __launch_bounds__(BOUNDS) k_1d38bd14de54(const __grid_constant__ Args a) {
  const u32 epoch = a.team.state->epoch[blockIdx.x];
  u32 met = epoch;
  if (a.team.meets & 1) announce_start(a.team, ++met);
  const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x, threads = (i64)gridDim.x * THREADS;
  const u32 exchanges = a.team.state->exchanges, turn = a.team.state->turn;
  const i64 half = turn & 1 ? a.half : 0;
  const double* parts0 = (const double*)(a.exchange[RANK] + half + a.a0_at);
  const double* parts1 = (const double*)(a.exchange[RANK] + half + a.a1_at);
  if (a.team.meets & 1) await_all(a.team, met);

  // phase 0
  double sum0 = Sum::none(double());
  double sum1 = Max::none(double());
  for (i64 i = thread; i < a.vectors; i += threads * UNROLL) {
    Spot at[UNROLL];
    bool live[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      live[u] = u == 0 || i + u * threads < a.vectors;
      at[u] = spot<4>(a, i + u * threads);
    }
    phase0<4, UNROLL>(a, at, live, sum0, sum1);
  }
  for (i64 i = a.first + thread; i < a.total; i += threads) {
    Spot at[1] = {spot<1>(a, i)};
    const bool live[1] = {true};
    phase0<1, 1>(a, at, live, sum0, sum1);
  }
  sum0 = fold_block<Sum>(sum0);
  if (threadIdx.x == 0) ((double*)(a.partial + a.a0_partial))[blockIdx.x] = sum0;
  sum1 = fold_block<Max>(sum1);
  if (threadIdx.x == 0) ((double*)(a.partial + a.a1_partial))[blockIdx.x] = sum1;
  if (arrive(a.team.state)) {
    sum0 = Sum::none(double());
    for (int b = threadIdx.x; b < gridDim.x; b += THREADS)
      sum0 = Sum::of(sum0, __ldcg((const double*)(a.partial + a.a0_partial) + b));
    sum0 = fold_block<Sum>(sum0);
    if (threadIdx.x == 0) { ((double*)(a.exchange[0] + half + a.a0_at))[RANK * a.a0_rows + 0] = sum0; ((double*)(a.exchange[1] + half + a.a0_at))[RANK * a.a0_rows + 0] = sum0; }
    sum1 = Max::none(double());
    for (int b = threadIdx.x; b < gridDim.x; b += THREADS)
      sum1 = Max::of(sum1, __ldcg((const double*)(a.partial + a.a1_partial) + b));
    sum1 = fold_block<Max>(sum1);
    if (threadIdx.x == 0) { ((double*)(a.exchange[0] + half + a.a1_at))[RANK * a.a1_rows + 0] = sum1; ((double*)(a.exchange[1] + half + a.a1_at))[RANK * a.a1_rows + 0] = sum1; }
    if (threadIdx.x == 0) {
      a.team.state->exchanges = exchanges + 1;
      a.team.state->turn = turn + 1;
    }
    announce_exchange(a.team, exchanges + 1, true);
  }
  await_exchange(a.team, exchanges + 1, true);

  // phase 1
  const float r2 = Narrow<float>::of(sqrt(combined<Sum>(parts0, 0, a.a0_rows, RANKS)));
  const float r8 = Narrow<float>::of(combined<Max>(parts1, 0, a.a1_rows, RANKS));
  const float r3 = r2 + r8;
  if (thread == 0) down(r2, *a.t2);
  for (i64 i = thread; i < a.vectors; i += threads * UNROLL) {
    Spot at[UNROLL];
    bool live[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      live[u] = u == 0 || i + u * threads < a.vectors;
      at[u] = spot<4>(a, i + u * threads);
    }
    phase1<4, UNROLL>(a, at, live, r3);
  }
  for (i64 i = a.first + thread; i < a.total; i += threads) {
    Spot at[1] = {spot<1>(a, i)};
    const bool live[1] = {true};
    phase1<1, 1>(a, at, live, r3);
  }

  if (a.team.meets & 2) {
    announce(a.team, ++met);
    await_all(a.team, met);
  }
  if (threadIdx.x == 0) a.team.state->epoch[blockIdx.x] = met;
}
}
