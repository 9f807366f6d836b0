// center
namespace in_k_39c94f70ae71 {  // so that the kernels of a Plan make one file
struct Args {
  const float* t0;
  i64 t0_step[2];
  float* t1;
  i64 t1_step[2];
  float* t2;
  i64 t2_step[2];
  i64 extent[2];
  i64 index;
  i64 index_step[2];
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
  Team team;
};

struct Spot { i64 c0, c1; };

template <int V> DEVICE Spot spot(const Args& a, i64 i) {
  Spot at;
  i64 rest = i, next;
  cut(rest, a.extent[1] / V, next, at.c1);
  rest = next;
  at.c1 *= V;
  at.c0 = rest;
  return at;
}

template <int V, int U>
DEVICE void phase0(const Args& a, const Spot (&at)[U], const bool (&live)[U], double& sum0) {
  Pack<float, V> x0[U];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(x0[u], a.t0 + at[u].c0 * a.t0_step[0] + at[u].c1);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float r0 = up(x0[u].at[j]);
      sum0 = Sum::of(sum0, (double)r0);
    }
  }
}

template <int V, int U>
DEVICE void phase1(const Args& a, const Spot (&at)[U], const bool (&live)[U], const double* parts0) {
  Pack<float, V> x1[U];
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    get(x1[u], a.t0 + at[u].c0 * a.t0_step[0] + at[u].c1);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) if (live[u]) {
    const float r2 = Narrow<float>::of(combined<Sum>(parts0, at[u].c0, a.a0_rows, 1) / (double)a.a0_count);
    Pack<float, V> y3;
    Pack<float, 1> y4;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float r1 = up(x1[u].at[j]);
      const float r3 = r1 - r2;
      down(r3, y3.at[j]);
      if (j == 0) down(r2, y4.at[0]);
    }
    put(a.t1 + at[u].c0 * a.t1_step[0] + at[u].c1, y3);
    if (at[u].c1 == 0) put(a.t2 + at[u].c0 * a.t2_step[0], y4);
  }
}

extern "C" __global__ void __launch_bounds__(BOUNDS) k_39c94f70ae71(const __grid_constant__ Args a) {
  const u32 epoch = a.team.state->epoch[blockIdx.x];
  u32 met = epoch;
  if (a.team.meets & 1) announce_start(a.team, ++met);
  const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x, threads = (i64)gridDim.x * THREADS;
  const u32 exchanges = a.team.state->exchanges, turn = a.team.state->turn;
  const i64 half = turn & 1 ? 0 : a.half;
  const double* parts0 = (const double*)(a.exchange[RANK] + half + a.a0_at);
  if (a.team.meets & 1) await_all(a.team, met);

  // phase 0
  {
    const i64 rows = a.extent[0];
    const i64 depth = a.extent[1];
    for (i64 row = thread / 32; row < rows; row += threads / 32) {
      double sum0 = Sum::none(double());
      Spot start = {};
      i64 rest_row = row, next_row;
      start.c0 = rest_row;
      const bool wide = a.vectors && a.extent[1] % 4 == 0;
      for (i64 k = threadIdx.x % 32; wide && k < depth / 4; k += 32) {
        i64 rest_k = k, next_k;
        start.c1 = rest_k;
        start.c1 *= 4;
        Spot at[1] = {start};
        const bool live[1] = {true};
        phase0<4, 1>(a, at, live, sum0);
      }
      for (i64 k = threadIdx.x % 32; !wide && k < depth; k += 32) {
        i64 rest_k = k, next_k;
        start.c1 = rest_k;
        Spot at[1] = {start};
        const bool live[1] = {true};
        phase0<1, 1>(a, at, live, sum0);
      }
      sum0 = fold_warp<Sum>(sum0);
      if (threadIdx.x % 32 == 0) ((double*)(a.exchange[RANK] + half + a.a0_at))[row] = sum0;
    }
  }
  if (arrive(a.team.state)) {
    if (threadIdx.x == 0) {
      a.team.state->exchanges = exchanges + 1;
    }
    announce_exchange(a.team, exchanges + 1, false);
  }
  await_exchange(a.team, exchanges + 1, false);

  // phase 1
  for (i64 i = thread; i < a.vectors; i += threads * UNROLL) {
    Spot at[UNROLL];
    bool live[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      live[u] = u == 0 || i + u * threads < a.vectors;
      at[u] = spot<4>(a, i + u * threads);
    }
    phase1<4, UNROLL>(a, at, live, parts0);
  }
  for (i64 i = a.first + thread; i < a.total; i += threads) {
    Spot at[1] = {spot<1>(a, i)};
    const bool live[1] = {true};
    phase1<1, 1>(a, at, live, parts0);
  }

  if (a.team.meets & 2) {
    announce(a.team, ++met);
    await_all(a.team, met);
  }
  if (threadIdx.x == 0) a.team.state->epoch[blockIdx.x] = met;
}
}
