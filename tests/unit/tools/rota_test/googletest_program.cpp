#include <gtest/gtest.h>
#include <signal.h>

#include "gpu.h"
#include "tools/rota_test/rota_test.h"

namespace {

TEST(Gpu, Nothing) {}
TEST(Gpu, Some) {
  gpu::allocate(30);
  gpu::release(20);
  gpu::launch(2000000000, 500000000);
}
TEST(Gpu, Fails) {
  EXPECT_EQ(1, 2) << "one is not two";
}
TEST(Gpu, Skips) {
  GTEST_SKIP() << "not here";
}
TEST(Gpu, DISABLED_Killed) {
  raise(SIGKILL);
}
TEST(GpuDeathTest, Forks) {
  EXPECT_EXIT(exit(3), ::testing::ExitedWithCode(3), "");
}

class Values : public ::testing::TestWithParam<int> {};
TEST_P(Values, AreSome) {
  gpu::allocate(static_cast<uint64_t>(GetParam()));
}
INSTANTIATE_TEST_SUITE_P(Few, Values, ::testing::Values(1, 2));

}  // namespace

int main(int count, char** words) {
  ::testing::InitGoogleTest(&count, words);
  rota::test::listen_to_googletest();
  rota::test::listen_to_googletest();
  return RUN_ALL_TESTS();
}
