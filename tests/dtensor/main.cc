// Joins the job, then runs the tests on every rank; a failure on any rank is that rank's exit code.
#include "tests/dtensor/support.h"

namespace cleave::test {
namespace {
std::unique_ptr<World> joined;
DeviceMesh line_mesh, square_mesh;
}  // namespace

const World& world() { return *joined; }
const DeviceMesh& line() { return line_mesh; }
const DeviceMesh& square() { return square_mesh; }

}  // namespace cleave::test

int main(int argc, char** argv) {
  using namespace cleave::test;
  testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  cleave::InitOptions options;
  options.timeout = std::chrono::seconds(60);
  if (const char* backend = std::getenv("CLEAVE_TEST_BACKEND")) options.backend = backend;
  if (const char* device = std::getenv("CLEAVE_TEST_DEVICE")) options.device = device;
  joined = std::make_unique<cleave::World>(cleave::init(options));
  line_mesh = cleave::init_device_mesh(world(), {world().size()}, {"dp"});
  // Tests named SquareMesh* are of a 2x2 mesh: they exist with four ranks only.
  if (world().size() != 4 && testing::GTEST_FLAG(filter) == "*")
    testing::GTEST_FLAG(filter) = "-*SquareMesh*";
  if (world().size() == 4) square_mesh = cleave::init_device_mesh(world(), {2, 2}, {"dp", "tp"});
  return RUN_ALL_TESTS();
}
