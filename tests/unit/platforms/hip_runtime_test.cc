// The AMD platform up to where a GPU would compute: the library is opened, kernels are registered with it and launched
// on it, and its errors come back with what they are about. The library is fake_hip.cc.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "platforms/gpu/gpu_ops.h"
#include "platforms/gpu/kernels/rows.h"
#include "platforms/gpu/runtime.h"
#include "unit/platforms/fake_hip.h"

namespace hadal::gpu::hip {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HipRuntime : public ::testing::Test {
 protected:
  static test::FakeHip& Fake() {
    static test::FakeHip* fake = [] {
      void* library = dlopen("libamdhip64.so.7", RTLD_NOW);
      auto* state = reinterpret_cast<test::FakeHip* (*)()>(dlsym(library, "FakeHipState"));
      return state();
    }();
    return *fake;
  }
  void SetUp() override {
    const test::FakeHip fresh;
    Fake().devices = fresh.devices;
    Fake().architecture = fresh.architecture;
    Fake().launch_error = 0;
    Fake().launches.clear();
    Fake().copies.clear();
  }
};

TEST_F(HipRuntime, SaysThatThereIsNoDevice) {
  Fake().devices = 0;
  const absl::Status status = Device::Open(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("no AMD GPU"), HasSubstr("no ROCm-capable device"),
                                       HasSubstr("hipError 100"), HasSubstr("/dev/kfd")));
}

TEST_F(HipRuntime, SaysHowManyDevicesThereAre) {
  EXPECT_THAT(Device::Open(3).status().ToString(), HasSubstr("device 3; this machine has 1"));
}

// Older libraries end a process that registers kernels for no device of the machine.
TEST_F(HipRuntime, RefusesOtherArchitecturesBeforeKernelsAreRegistered) {
  Fake().architecture = "gfx90a:sramecc+:xnack-";
  const size_t before = Fake().binaries.size();
  const absl::Status status = Device::Open(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.ToString(),
              AllOf(HasSubstr("MI300X"), HasSubstr("is gfx90a;"), HasSubstr("gfx942"), HasSubstr("gfx950")));
  EXPECT_EQ(Fake().binaries.size(), before);
}

TEST_F(HipRuntime, RegistersKernelsOnceAndTellsWhatTheDeviceIs) {
  const auto device = Device::Open(0);
  ASSERT_TRUE(device.ok()) << device.status();
  const size_t binaries = Fake().binaries.size();
  EXPECT_GE(binaries, 1);
  EXPECT_THAT(Fake().functions, Contains(HasSubstr("RmsNormKernel")));
  EXPECT_EQ((*device)->stream().wave, 64);
  EXPECT_EQ((*device)->info().architecture, "gfx942");
  EXPECT_EQ((*device)->info().shared_per_block, 65536);
  EXPECT_EQ((*device)->info().memory_bytes, Fake().memory);

  Fake().architecture = "gfx950:sramecc+:xnack-";
  EXPECT_EQ(*DescribeGpu({}), "AMD Instinct MI300X, gfx950, 304 multiprocessors");
  EXPECT_TRUE(MakeGpuOps({}).ok());
  EXPECT_EQ(Fake().binaries.size(), binaries);
}

TEST_F(HipRuntime, LaunchesByTheRegisteredName) {
  const auto device = Device::Open(0);
  ASSERT_TRUE(device.ok()) << device.status();
  const ops::Tensor x = ops::MakeTensor(nullptr, DType::kBF16, 5, 2048);
  LaunchRmsNorm((*device)->stream(), x, {}, 1e-6f, x);
  ASSERT_EQ(Fake().launches.size(), 1);
  const test::FakeLaunch& launch = Fake().launches[0];
  EXPECT_THAT(launch.kernel, HasSubstr("RmsNormKernel"));
  EXPECT_THAT(launch.blocks, ElementsAre(5, 1, 1));
  EXPECT_THAT(launch.threads, ElementsAre(256, 1, 1));
  EXPECT_EQ(launch.first_argument, &x);
  EXPECT_EQ(launch.stream, (*device)->stream().handle);
  EXPECT_TRUE((*device)->Synchronize().ok());

  constexpr int kInvalidDeviceFunction = 98;
  Fake().launch_error = kInvalidDeviceFunction;
  LaunchRmsNorm((*device)->stream(), x, {}, 1e-6f, x);
  const absl::Status status = (*device)->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("gfx942"), HasSubstr("hipError 98")));
  EXPECT_TRUE((*device)->Synchronize().ok());  // told once
}

TEST_F(HipRuntime, MemoryIsZeroedCopiedAndRefusedWithFigures) {
  const auto device = Device::Open(0);
  ASSERT_TRUE(device.ok()) << device.status();
  const auto buffer = (*device)->Allocate(16, "a test");
  const auto staging = (*device)->AllocateStaging(16, "a test");
  ASSERT_TRUE(buffer.ok() && staging.ok());
  const std::vector<unsigned char> zero(16, 0), some(16, 7);
  EXPECT_EQ(std::memcmp(buffer->data(), zero.data(), 16), 0);
  EXPECT_EQ(std::memcmp(staging->data(), zero.data(), 16), 0);
  std::vector<unsigned char> back(16);
  (*device)->Upload(buffer->data(), some.data(), 16);
  (*device)->Copy(staging->data(), buffer->data(), 16);
  (*device)->Download(back.data(), staging->data(), 16);
  EXPECT_EQ(back, some);
  EXPECT_THAT(Fake().copies, ElementsAre(1, 3, 2));  // host to device, device to device, device to host

  const absl::Status status = (*device)->Allocate(size_t{1} << 30, "the weights").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.ToString(), AllOf(HasSubstr("1073741824 bytes for the weights"),
                                       HasSubstr("524288 of 1048576 bytes are free"), HasSubstr("out of memory")));
  EXPECT_THAT((*device)->AllocateStaging(size_t{1} << 30, "the weights").status().ToString(),
              HasSubstr("cannot pin 1073741824 bytes"));
  EXPECT_TRUE((*device)->Synchronize().ok());
}

}  // namespace
}  // namespace hadal::gpu::hip
