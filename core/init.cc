#include "core/init.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/c10d_group.h"
#include "core/counted_group.h"
#include "core/launch_environment.h"
#include "core/shm/shm_group.h"

namespace cleave {

struct WorldState {
  LaunchEnvironment env;
  InitOptions options;
  std::string backend;
  c10::intrusive_ptr<c10d::Store> store;  // null with one rank
  ProcessGroupPtr group;
  std::map<std::vector<int>, int> groups_made;  // of each set of ranks
};

namespace {

c10::intrusive_ptr<c10d::Store> connect(const LaunchEnvironment& env, std::chrono::milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(env.master_port);
  options.isServer = env.rank == 0;
  options.numWorkers = static_cast<std::size_t>(env.size);
  options.timeout = timeout;
  options.waitWorkers = false;
  if (env.listen_fd) options.masterListenFd = *env.listen_fd;
  return c10::make_intrusive<c10d::TCPStore>(env.master_address, options);
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

shm::Exchange exchange_over(c10::intrusive_ptr<c10d::Store> store) {
  return {[store](const std::string& key, const std::string& value) {
            store->set(key, std::vector<uint8_t>(value.begin(), value.end()));
          },
          [store](const std::string& key) {
            const auto bytes = store->get(key);
            return std::string(bytes.begin(), bytes.end());
          }};
}

// The backend that "auto" means. Uses what all ranks share, so all choose alike.
std::string resolve(const InitOptions& options, const LaunchEnvironment& env,
                    const c10::intrusive_ptr<c10d::Store>& store) {
  TORCH_CHECK_VALUE(options.device == "cpu" || options.device == "cuda",
                    "cleave: device must be 'cpu' or 'cuda', got '", options.device, "'");
  const std::string& wish = options.backend;
  TORCH_CHECK_VALUE(wish == "auto" || wish == "shm" || wish == "gloo" || wish == "nccl",
                    "cleave: backend must be auto, shm, gloo or nccl, got '", wish, "'");
  TORCH_CHECK_VALUE((options.device == "cuda") == (wish == "nccl") || wish == "auto", "cleave: backend '",
                    wish, "' does not serve device '", options.device, "' (cpu: shm or gloo; cuda: nccl)");
  if (env.size == 1) return "self";
  if (wish != "auto") return wish;
  if (options.device == "cuda") return "nccl";
  auto exchange = exchange_over(store);
  exchange.set("host" + std::to_string(env.rank), host_name());
  for (int r = 0; r < env.size; ++r) {
    if (exchange.get("host" + std::to_string(r)) != exchange.get("host0")) return "gloo";
  }
  return "shm";
}

ProcessGroupPtr make_group(const WorldState& world, const std::vector<int>& ranks, const std::string& name,
                           const std::string& prefix) {
  int rank = -1;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == world.env.rank) rank = static_cast<int>(i);
  }
  TORCH_CHECK(rank >= 0, "cleave: group '", name, "' of ranks ", ranks, " does not contain this rank ",
              world.env.rank);
  if (ranks.size() == 1) return make_self_group(name, world.env.rank);
  auto store = c10::make_intrusive<c10d::PrefixStore>(prefix, world.store);
  const auto timeout = world.options.timeout;
  const bool local = world.env.local_size == world.env.size;
  ProcessGroupPtr group;
  if (world.backend == "shm") {
    group = make_shm_group(name, ranks, rank, exchange_over(store), timeout);
  } else if (world.backend == "nccl") {
    group = make_nccl_group(name, ranks, rank, store, timeout);
  } else {
    group = make_gloo_group(name, ranks, rank, store, local ? "127.0.0.1" : host_name(), timeout);
  }
  group->barrier();  // from here on nobody needs the store: the rank that serves it may end
  return group;
}

}  // namespace

World init(const InitOptions& options) {
  World world{std::make_shared<WorldState>()};
  auto& state = *world.state;
  state.env = read_launch_environment();
  state.options = options;
  if (options.device == "cuda") use_gpu(state.env.local_rank);
  if (state.env.size > 1) state.store = connect(state.env, options.timeout);
  state.backend = resolve(options, state.env, state.store);
  std::vector<int> all;
  for (int r = 0; r < state.env.size; ++r) all.push_back(r);
  state.group = make_group(state, all, "world", "world");
  return world;
}

int World::rank() const { return state->env.rank; }
int World::size() const { return state->env.size; }
int World::local_rank() const { return state->env.local_rank; }
int World::local_size() const { return state->env.local_size; }
const std::string& World::device() const { return state->options.device; }
const std::string& World::backend() const { return state->backend; }
const ProcessGroupPtr& World::group() const { return state->group; }

ProcessGroupPtr World::new_group(const std::vector<int>& ranks, const std::string& name) const {
  TORCH_CHECK(!ranks.empty(), "cleave: group '", name, "' has no ranks");
  // The same on all its ranks, whatever groups of others they have made before.
  std::string prefix = "group" + std::to_string(state->groups_made[ranks]++);
  for (const int rank : ranks) prefix += "." + std::to_string(rank);
  return make_group(*state, ranks, name, prefix);
}

}  // namespace cleave
