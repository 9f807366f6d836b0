// What every generated kernel stands on: types, 16-byte accesses, Philox, and meetings of ranks over peer pointers.
// RANKS is set by the kernel; RANK (of the group), UNROLL, THREADS,
// DEFER (whether what all ranks receive is sent after everything was read) and
// PUSH (whether peers' parts of a sum are written into staging, not read) are compile options.
#ifndef RANK
#define RANK 0
#endif
#ifndef UNROLL
#define UNROLL 1
#endif
#ifndef THREADS
#define THREADS 512
#endif
#ifndef DEFER
#define DEFER 0
#endif
#ifndef PUSH
#define PUSH 0
#endif
#if PUSH  // rounds need 1,024 threads a processor: one CTA works while another waits
#define BOUNDS THREADS, 1024 / THREADS
#define KEPT __shared__
#else
#define BOUNDS THREADS
#define KEPT
#endif
#define DEVICE static __device__ __forceinline__

typedef long long i64;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---- 16-bit floats: held as float once read, rounded to nearest even when they are made ----

struct fp16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

DEVICE float up(fp16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE float up(bf16 x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE float up(float x) { return x; }
DEVICE double up(double x) { return x; }
DEVICE int up(int x) { return x; }
DEVICE i64 up(i64 x) { return x; }

DEVICE void down(float x, fp16& y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void down(float x, bf16& y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }
DEVICE void down(float x, float& y) { y = x; }
DEVICE void down(double x, double& y) { y = x; }
DEVICE void down(int x, int& y) { y = x; }
DEVICE void down(i64 x, i64& y) { y = x; }

template <class T> DEVICE auto rounded(decltype(up(T())) x) { T y; down(x, y); return up(y); }

// A finished reduction, rounded once from its wide type.
template <class T> struct Narrow { static __device__ __forceinline__ T of(double x) { return (T)x; } };
template <> struct Narrow<fp16> {
  static __device__ __forceinline__ float of(double x) {
    fp16 y; asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x)); return up(y);
  }
};
template <> struct Narrow<bf16> {
  static __device__ __forceinline__ float of(double x) {
    // Through float, with the last bit set where something was cut off: the second rounding then errs nowhere.
    float y = __double2float_rz(x);
    if ((double)y != x && fabsf(y) <= 3.402823466e38f) y = __uint_as_float(__float_as_uint(y) | 1u);
    return rounded<bf16>(y);
  }
};
template <> struct Narrow<i64> { static __device__ __forceinline__ i64 of(i64 x) { return x; } };
template <> struct Narrow<int> { static __device__ __forceinline__ int of(i64 x) { return (int)x; } };

// Floats to integers: toward zero, the nearest that fits, NaN to 0.
DEVICE int to_int(float x) { return x != x ? 0 : __float2int_rz(x); }
DEVICE int to_int(double x) { return x != x ? 0 : __double2int_rz(x); }
DEVICE i64 to_i64(float x) { return x != x ? 0 : __float2ll_rz(x); }
DEVICE i64 to_i64(double x) { return x != x ? 0 : __double2ll_rz(x); }

// Integers wrap around.
DEVICE int plus(int a, int b) { return (int)((u32)a + (u32)b); }
DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE int minus(int a, int b) { return (int)((u32)a - (u32)b); }
DEVICE i64 minus(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEVICE int times(int a, int b) { return (int)((u32)a * (u32)b); }
DEVICE i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }

template <class T> DEVICE T larger(T a, T b) { return a != a ? a : b != b ? b : a > b ? a : b; }
template <class T> DEVICE T smaller(T a, T b) { return a != a ? a : b != b ? b : a < b ? a : b; }

// ---- division by one number again and again: bit for bit what x / d gives ----

struct Divisor { float d, inverse; bool is_plain; };

DEVICE Divisor divisor(float d) {
  const float size = fabsf(d);
  return {d, 1.0f / d, size >= 0x1p-40f && size <= 0x1p40f};
}

// With the rounded inverse, one step of refinement makes the quotient faithful and a second one rounds it correctly
// (Markstein's theorem), as long as nothing leaves the range of normal numbers; elsewhere it is divided.
DEVICE float over(float x, const Divisor& by) {
  const float size = fabsf(x);
  if (!(by.is_plain && size >= 0x1p-60f && size <= 0x1p60f)) return x / by.d;
  float q = x * by.inverse;
  q = fmaf(fmaf(-q, by.d, x), by.inverse, q);
  return fmaf(fmaf(-q, by.d, x), by.inverse, q);
}

// ---- accesses: V elements at a time, at most 16 bytes an instruction ----

template <int N> struct Word { typedef uint4 type; };
template <> struct Word<2> { typedef unsigned short type; };
template <> struct Word<4> { typedef u32 type; };
template <> struct Word<8> { typedef u64 type; };
template <class T, int V> using Wide = typename Word<V * sizeof(T)>::type;

template <class T, int V> struct alignas(sizeof(Wide<T, V>)) Pack { T at[V]; };

template <class T, int V> DEVICE void get(Pack<T, V>& x, const T* p) {
#pragma unroll
  for (int n = 0; n < (int)(sizeof(x) / sizeof(Wide<T, V>)); ++n) ((Wide<T, V>*)&x)[n] = ((const Wide<T, V>*)p)[n];
}

// Of another rank's memory: read once, so not worth a place in the cache.
template <class T, int V> DEVICE void fetch(Pack<T, V>& x, const T* p) {
#pragma unroll
  for (int n = 0; n < (int)(sizeof(x) / sizeof(Wide<T, V>)); ++n) ((Wide<T, V>*)&x)[n] = __ldcs((const Wide<T, V>*)p + n);
}

// Of staging, which peers write again and again: never from the nearest cache, which would keep what was there before.
template <class T, int V> DEVICE void take(Pack<T, V>& x, const T* p) {
#pragma unroll
  for (int n = 0; n < (int)(sizeof(x) / sizeof(Wide<T, V>)); ++n) ((Wide<T, V>*)&x)[n] = __ldcg((const Wide<T, V>*)p + n);
}

// By the intrinsic: an assignment may be taken apart into a store for each element.
template <class T, int V> DEVICE void put(T* p, const Pack<T, V>& x) {
#pragma unroll
  for (int n = 0; n < (int)(sizeof(x) / sizeof(Wide<T, V>)); ++n) __stwb((Wide<T, V>*)p + n, ((const Wide<T, V>*)&x)[n]);
}

// i = quotient * n + remainder, in 32 bits where they do.
DEVICE void cut(i64 i, i64 n, i64& quotient, i64& remainder) {
  if ((u64)(i | n) >> 32) {
    quotient = i / n;
    remainder = i % n;
  } else {
    quotient = (u32)i / (u32)n;
    remainder = (u32)i % (u32)n;
  }
}

// ---- Philox4x32-10: four words a call; key = seed, counter = (index / 4, stream) ----

DEVICE uint4 philox(u64 call, u64 stream, u64 seed) {
  u32 a = (u32)call, b = (u32)(call >> 32), c = (u32)stream, d = (u32)(stream >> 32);
  u32 k = (u32)seed, l = (u32)(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u32 high = __umulhi(0xD2511F53u, a), low = 0xD2511F53u * a;
    const u32 top = __umulhi(0xCD9E8D57u, c), bottom = 0xCD9E8D57u * c;
    a = top ^ b ^ k;
    b = bottom;
    c = high ^ d ^ l;
    d = low;
    k += 0x9E3779B9u;
    l += 0xBB67AE85u;
  }
  return make_uint4(a, b, c, d);
}

// Which of V neighbours from global index `first` are kept; V > 1 only where 4 divides `first`.
template <int V> DEVICE void keep(bool (&kept)[V], i64 first, u64 stream, u64 seed, u64 threshold) {
  if constexpr (V % 4 == 0) {
#pragma unroll
    for (int n = 0; n < V / 4; ++n) {
      const uint4 words = philox((u64)first / 4 + n, stream, seed);
      kept[4 * n] = words.x >= threshold;
      kept[4 * n + 1] = words.y >= threshold;
      kept[4 * n + 2] = words.z >= threshold;
      kept[4 * n + 3] = words.w >= threshold;
    }
  } else {
#pragma unroll
    for (int n = 0; n < V; ++n) {
      const uint4 words = philox((u64)(first + n) / 4, stream, seed);
      const int at = (int)((first + n) & 3);
      kept[n] = (at == 0 ? words.x : at == 1 ? words.y : at == 2 ? words.z : words.w) >= threshold;
    }
  }
}

// ---- meetings of ranks ----

// Kept by each rank for one stream of launches; counters only grow, so nothing is cleared between launches or replays.
struct State {
  u32 error;       // 0, or which wait gave up: entry of the plan << 8 | rank + 1
  u32 ticket;      // CTAs that have arrived
  u32 exchanges;   // exchanges done
  u32 turn;        // launches with exchanges among ranks done: two halves of the exchange memory take turns
  u32 epoch[1020]; // meetings done, for each CTA
};

struct Team {
  u32* pads[RANKS];  // signal pads in rank order; rank k owns the k-th, the others write into it
  State* state;
  u64 limit_ns;      // how long a wait may take
  u64 meets;         // bit 0: at the start; bit 1: at the end; from bit 8: entry of the plan
};

// A pad: one line of 16 flags for each CTA, then one line for exchanges.
DEVICE u32* flag_of(u32* pad, u32 line, int rank) { return pad + line * 16 + rank; }
enum : u32 { EXCHANGE_LINE = 1020 };
DEVICE u32 blame(const Team& team, int rank) { return (u32)(team.meets & ~255ull) | (u32)(rank + 1); }

// A release is cumulative: what the CTA's other threads wrote before the last __syncthreads is seen before the flag.
DEVICE void post(u32* flag, u32 value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// What earlier kernels of the stream wrote is seen by all once they have ended: only the arrival is told.
DEVICE void post_arrival(u32* flag, u32 value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

DEVICE u32 seen(const u32* flag) {
  u32 value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

DEVICE u64 clock_ns() { u64 t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }

// Until *flag has reached `value`. A rank that does not come is an error word, not a hang.
DEVICE void await(const u32* flag, u32 value, State* state, u64 limit_ns, u32 blamed) {
  if ((int)(seen(flag) - value) >= 0) return;
  const u64 start = clock_ns();
  for (u32 polls = 1; (int)(seen(flag) - value) < 0; ++polls) {
    if (polls % 1024 == 0 && (*(volatile u32*)&state->error || clock_ns() - start > limit_ns)) {
      atomicCAS(&state->error, 0u, blamed);
      return;
    }
  }
}

// This CTA has come as far as `epoch`: everything it wrote may be read by the CTAs of this number on other ranks.
DEVICE void announce(const Team& team, u32 epoch) {
  __syncthreads();
  if (threadIdx.x < RANKS && threadIdx.x != RANK) post(flag_of(team.pads[threadIdx.x], blockIdx.x, RANK), epoch);
}

// This CTA has started: what its stream did before may be read by the CTAs of this number on other ranks.
DEVICE void announce_start(const Team& team, u32 epoch) {
  if (threadIdx.x < RANKS && threadIdx.x != RANK)
    post_arrival(flag_of(team.pads[threadIdx.x], blockIdx.x, RANK), epoch);
}

DEVICE void await_all(const Team& team, u32 epoch) {
  if (threadIdx.x < RANKS && threadIdx.x != RANK)
    await(flag_of(team.pads[RANK], blockIdx.x, threadIdx.x), epoch, team.state, team.limit_ns, blame(team, threadIdx.x));
  __syncthreads();
}

// ---- lists: a warp walks them bucket by bucket ----

enum { BEGIN, END, PIECE, SHIFT };  // words of a bucket's place; the shifts follow
enum { FINISHED = 1024 };           // tensors whose results a CTA keeps

#define LANE (threadIdx.x % 32)

DEVICE u32 following(u32 slot) { return slot == 2 ? 0 : slot + 1; }

struct Buckets { const i64 *start, *piece; i64 count; };

DEVICE i64 bucket_word(const Buckets& all, i64 b) {
  return LANE > PIECE || b >= all.count ? 0 : LANE == PIECE ? all.piece[b] : all.start[b + LANE];
}

// ---- pushing: each CTA writes what the CTA of its number on a peer takes in the next round ----

enum : u32 { SLOTS = 4 };
enum How { PULL, STAGED, READY };  // peers' parts are read there; come under a number; have come

// Where a phase finds what has come: its number, this thread's first element, and how far apart its vectors are.
struct Source { u32 number; int first, step; };

// The part of `stage` where rank `from` puts what a CTA takes under a number.
DEVICE unsigned char* staged(unsigned char* stage, u32 number, int from, int bytes) {
  return stage + ((i64)(number % SLOTS * RANKS + from) * gridDim.x + blockIdx.x) * bytes;
}

// By each warp for itself: what all peers sent under this number lies in staging.
DEVICE void await_push(const Team& team, u32 number) {
  const int lane = threadIdx.x % 32;
  if (lane < RANKS && lane != RANK)
    await(flag_of(team.pads[RANK], blockIdx.x, lane), number, team.state, team.limit_ns, blame(team, lane));
  __syncwarp();
}

// The largest and the smallest of what all ranks have.
DEVICE i64 most(const i64 (&counts)[RANKS]) {
  i64 found = counts[0];
#pragma unroll
  for (int rank = 1; rank < RANKS; ++rank) found = counts[rank] > found ? counts[rank] : found;
  return found;
}
DEVICE i64 least(const i64 (&counts)[RANKS]) {
  i64 found = counts[0];
#pragma unroll
  for (int rank = 1; rank < RANKS; ++rank) found = counts[rank] < found ? counts[rank] : found;
  return found;
}

// At most 32 * V * U elements by one warp; `to` is aligned.
template <int V, int U, class T> DEVICE void deliver(T* to, const T* from, i64 count) {
  const int lane = threadIdx.x % 32;
  i64 done = 0;
  if (count == 32 * V * U && (u64)from % sizeof(Wide<T, V>) == 0) {
    Pack<T, V> x[U];
#pragma unroll
    for (int u = 0; u < U; ++u) fetch(x[u], from + (u * 32 + lane) * V);
#pragma unroll
    for (int u = 0; u < U; ++u) put(to + (u * 32 + lane) * V, x[u]);
    done = count;
  }
  for (i64 n = done + lane; n < count; n += 32) to[n] = from[n];
}

// ---- reductions: in a fixed order, so that a launch of one shape always gives the same bits ----

struct Sum {
  DEVICE double none(double) { return 0; }
  DEVICE i64 none(i64) { return 0; }
  template <class W> DEVICE W of(W a, W b) { return a + b; }
};
struct Max {
  DEVICE double none(double) { return __longlong_as_double(0xFFF0000000000000ll); }
  DEVICE i64 none(i64) { return (i64)0x8000000000000000ull; }
  template <class W> DEVICE W of(W a, W b) { return larger(a, b); }
};
struct Min {
  DEVICE double none(double) { return __longlong_as_double(0x7FF0000000000000ll); }
  DEVICE i64 none(i64) { return 0x7FFFFFFFFFFFFFFFll; }
  template <class W> DEVICE W of(W a, W b) { return smaller(a, b); }
};

template <class F, class W> DEVICE W fold_warp(W x) {
#pragma unroll
  for (int step = 16; step; step /= 2) x = F::of(x, __shfl_down_sync(0xFFFFFFFFu, x, step));
  return x;
}

// Parts begin to end by one warp, in lane 0; sixteen loads in flight, since one CTA does this alone.
template <class F, class W> DEVICE W fold_run(const W* parts, i64 begin, i64 end) {
  W sum = F::none(W());
  i64 at = begin + threadIdx.x % 32;
  for (; at + 15 * 32 < end; at += 16 * 32) {
    W x[16];
#pragma unroll
    for (int n = 0; n < 16; ++n) x[n] = __ldcg(parts + at + n * 32);
#pragma unroll
    for (int n = 0; n < 16; ++n) sum = F::of(sum, x[n]);
  }
  for (; at < end; at += 32) sum = F::of(sum, __ldcg(parts + at));
  return fold_warp<F>(sum);
}

// In thread 0 of the CTA.
template <class F, class W> DEVICE W fold_block(W x) {
  __shared__ W warps[32];
  x = fold_warp<F>(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = x;
  __syncthreads();
  if (threadIdx.x < 32) x = fold_warp<F>(threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : F::none(W()));
  return x;
}

// True in the one CTA that comes last; it sees what all the others wrote before they came.
DEVICE bool arrive(State* state) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence_system();
    last = atomicAdd(&state->ticket, 1u) == gridDim.x - 1;
    if (last) state->ticket = 0;
    __threadfence_system();
  }
  __syncthreads();
  return last;
}

// By the last CTA: this rank's partial results lie in the exchange memory of all that read them.
DEVICE void announce_exchange(const Team& team, u32 number, bool crosses) {
  __syncthreads();
  if (threadIdx.x < RANKS && (crosses || threadIdx.x == RANK))
    post(flag_of(team.pads[threadIdx.x], EXCHANGE_LINE, RANK), number);
}

DEVICE void await_exchange(const Team& team, u32 number, bool crosses) {
  if (threadIdx.x < RANKS && (crosses || threadIdx.x == RANK))
    await(flag_of(team.pads[RANK], EXCHANGE_LINE, threadIdx.x), number, team.state, team.limit_ns, blame(team, threadIdx.x));
  __syncthreads();
}

// The ranks' partial results of row `row`, in rank order; `rows` lie between one rank's part and the next.
template <class F, class W> DEVICE W combined(const W* parts, i64 row, i64 rows, int ranks) {
  W x = __ldcg(parts + row);
  for (int rank = 1; rank < ranks; ++rank) x = F::of(x, __ldcg(parts + rank * rows + row));
  return x;
}

