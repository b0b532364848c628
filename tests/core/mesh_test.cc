// Meshes, and the environment that ranks come from.
#include <map>

#include "core/launch_environment.h"
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {

LaunchEnvironment read(std::map<std::string, std::string> variables) {
  return read_launch_environment([=](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

TEST(Environment, NothingSetIsOneRank) { EXPECT_EQ(read({}).size, 1); }

TEST(Environment, Torchrun) {
  const auto env = read({{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "a"},
                         {"MASTER_PORT", "29500"}});
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.master_port, 29500);
}

TEST(Environment, OpenMpiAndSlurm) {
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "2"},
                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                  {"MASTER_PORT", "1"}})
                .rank,
            1);
  const auto env = read({{"SLURM_PROCID", "2"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                         {"MASTER_PORT", "1"}});
  EXPECT_EQ(env.size, 4);
  EXPECT_EQ(env.local_size, 2);
}

TEST(Environment, HalfSetNamesTheVariable) {
  try {
    read({{"RANK", "0"}});
    FAIL();
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("WORLD_SIZE is missing"), std::string::npos);
  }
  EXPECT_ANY_THROW(read({{"RANK", "x"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}));
  EXPECT_ANY_THROW(read({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}}));
  EXPECT_ANY_THROW(read({{"RANK", "0"}, {"WORLD_SIZE", "2"}}));
}

TEST(Mesh, WrongSizeIsRefusedOnAllRanks) {
  try {
    init_device_mesh(world(), {world().size() + 1}, {"dp"});
    FAIL();
  } catch (const std::exception& e) {
    EXPECT_NE(std::string(e.what()).find("the job has " + std::to_string(world().size())), std::string::npos);
  }
  EXPECT_ANY_THROW(init_device_mesh(world(), {world().size(), 1}, {"dp", "dp"}));
  EXPECT_ANY_THROW(init_device_mesh(world(), {world().size()}, {"dp", "tp"}));
  world().group()->barrier();
}

TEST(Mesh, SquareMeshSlicesAndFlattens) {
  const auto& mesh = square();
  EXPECT_EQ(mesh.coordinate(0), world().rank() / 2);
  EXPECT_EQ(mesh.coordinate(1), world().rank() % 2);
  EXPECT_EQ(mesh["tp"].ranks(), (std::vector<int>{world().rank() / 2 * 2, world().rank() / 2 * 2 + 1}));
  EXPECT_EQ(mesh["dp"].ranks(), (std::vector<int>{world().rank() % 2, world().rank() % 2 + 2}));
  at::Tensor sum = at::full({1}, world().rank());
  mesh["dp"].group().all_reduce(sum).wait();
  EXPECT_EQ(sum.item<int64_t>(), 2 * (world().rank() % 2) + 2);
  const auto flat = mesh.flatten("all");
  EXPECT_EQ(flat.size(), 4);
  EXPECT_ANY_THROW(mesh["pp"]);
}

}  // namespace
}  // namespace cleave::test
