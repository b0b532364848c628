// What a DTensor op costs more than the plain one: 4x4 tensors, the same op on both in turn. No op here sends
// anything, so `added_ns` is the price of finding the rule, the placements and the wrapping.
#include "benchmarks/support/paired.h"
#include "benchmarks/support/world.h"
#include "core/device_mesh.h"
#include "core/dtensor.h"

namespace cleave::bench {
namespace {

const DeviceMesh& mesh() {
  static const DeviceMesh made = init_device_mesh(world(), {world().size()}, {"dp"});
  return made;
}

at::Tensor spread(const at::Tensor& full, const Placement& placement) {
  return distribute_tensor(full, mesh(), {placement});
}

template <class Op>
void unary(benchmark::State& state, Op op, const Placement& placement = Shard(0)) {
  torch::NoGradGuard no_grad;
  const at::Tensor plain = torch::randn({4, 4});
  const at::Tensor sharded = spread(plain, placement);
  Paired paired;
  for (auto _ : state) paired.round([&] { return op(plain); }, [&] { return op(sharded); });
  paired.report(state, "dtensor");
}

template <class Op>
void binary(benchmark::State& state, Op op, const Placement& left, const Placement& right) {
  torch::NoGradGuard no_grad;
  const at::Tensor a = torch::randn({4, 4}), b = torch::randn({4, 4});
  at::Tensor x = a.clone();
  const at::Tensor da = spread(a, left), db = spread(b, right);
  Paired paired;
  for (auto _ : state) paired.round([&] { return op(x, b); }, [&] { return op(da, db); });
  paired.report(state, "dtensor");
}

void Add(benchmark::State& state) {
  binary(
      state, [](const at::Tensor& a, const at::Tensor& b) { return at::add(a, b); }, Shard(0), Shard(0));
}
void Mul(benchmark::State& state) {
  binary(
      state, [](const at::Tensor& a, const at::Tensor& b) { return at::mul(a, b); }, Shard(0), Shard(0));
}
void AddInPlace(benchmark::State& state) {
  binary(
      state, [](at::Tensor a, const at::Tensor& b) { return a.add_(b); }, Shard(0), Shard(0));
}
void Mm(benchmark::State& state) {
  binary(
      state, [](const at::Tensor& a, const at::Tensor& b) { return at::mm(a, b); }, Shard(0), Replicate());
}
void MulNumber(benchmark::State& state) {
  unary(state, [](const at::Tensor& a) { return at::mul(a, 2.0); });
}
void Relu(benchmark::State& state) {
  unary(state, [](const at::Tensor& a) { return at::relu(a); });
}
void Transpose(benchmark::State& state) {
  unary(state, [](const at::Tensor& a) { return a.t(); });
}
void View(benchmark::State& state) {
  unary(state, [](const at::Tensor& a) { return a.view({4, 2, 2}); });
}
void Detach(benchmark::State& state) {
  unary(state, [](const at::Tensor& a) { return a.detach(); });
}

void LinearForwardBackward(benchmark::State& state) {
  auto step = [](const at::Tensor& x, at::Tensor weight) {
    weight.mutable_grad().reset();
    at::linear(x, weight).sum().backward();
    return weight.grad();
  };
  const at::Tensor x = torch::randn({4, 4}), w = torch::randn({4, 4});
  at::Tensor plain_w = w.clone().requires_grad_(), w_spread = spread(w, Replicate()).requires_grad_();
  const at::Tensor x_spread = spread(x, Shard(0));
  Paired paired;
  for (auto _ : state)
    paired.round([&] { return step(x, plain_w); }, [&] { return step(x_spread, w_spread); });
  paired.report(state, "dtensor");
}

void RedistributeToItself(benchmark::State& state) {
  unary(state, [](const at::Tensor& a) { return is_dtensor(a) ? redistribute(a, {Shard(0)}) : a; });
}

// Another shape in every call: each rule is asked anew. The plain op gets what the rank has.
template <class Op>
void new_shape(benchmark::State& state, Op op) {
  torch::NoGradGuard no_grad;
  static int64_t rows = 1;  // none comes twice
  constexpr int kCalls = 100;
  Paired paired;
  for (auto _ : state) {
    state.PauseTiming();
    std::vector<at::Tensor> plain, spreads;
    for (int i = 0; i < kCalls; ++i, rows += world().size()) {
      spreads.push_back(spread(torch::randn({rows, 4}), Shard(0)));
      plain.push_back(local_of(spreads.back()).clone());
    }
    state.ResumeTiming();
    const auto time = [&](const std::vector<at::Tensor>& tensors) {
      const auto start = std::chrono::steady_clock::now();
      for (const auto& tensor : tensors) benchmark::DoNotOptimize(op(tensor));
      const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
      return took.count() / kCalls;
    };
    paired.add(time(plain), time(spreads));
  }
  paired.report(state, "dtensor");
}

void AddNewShape(benchmark::State& state) {
  new_shape(state, [](const at::Tensor& a) { return at::add(a, a); });
}
void MmNewShape(benchmark::State& state) {
  static const at::Tensor plain = torch::randn({4, 4});
  static const at::Tensor spread_out = spread(plain, Replicate());
  new_shape(state, [&](const at::Tensor& a) { return at::mm(a, is_dtensor(a) ? spread_out : plain); });
}
void SoftmaxNewShape(benchmark::State& state) {
  new_shape(state, [](const at::Tensor& a) { return at::softmax(a, -1); });
}
void SliceNewShape(
    benchmark::State& state) {  // a redistribution that sends nothing: its plan is searched anew
  new_shape(state, [](const at::Tensor& a) {
    if (!is_dtensor(a)) return a;
    const auto ones = distribute_tensor(local_of(a), mesh(), {Replicate()});
    return redistribute(ones, {Shard(0)});
  });
}
void ViewNewShape(benchmark::State& state) {
  new_shape(state, [](const at::Tensor& a) { return a.view({-1, 2, 2}); });
}

BENCHMARK(Add)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(Mul)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(MulNumber)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(Relu)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(Transpose)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(View)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(Detach)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(AddInPlace)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(Mm)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(LinearForwardBackward)->Iterations(20)->Unit(benchmark::kMillisecond);
BENCHMARK(AddNewShape)->Iterations(10)->Unit(benchmark::kMillisecond);
BENCHMARK(MmNewShape)->Iterations(10)->Unit(benchmark::kMillisecond);
BENCHMARK(SoftmaxNewShape)->Iterations(10)->Unit(benchmark::kMillisecond);
BENCHMARK(SliceNewShape)->Iterations(10)->Unit(benchmark::kMillisecond);
BENCHMARK(ViewNewShape)->Iterations(10)->Unit(benchmark::kMillisecond);
BENCHMARK(RedistributeToItself)->Iterations(20)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace cleave::bench
