// What is read of images of modules, and of CUDA_VISIBLE_DEVICES.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tools/simgpu/driver/device/visible_devices.h"
#include "tools/simgpu/driver/module/image.h"

using namespace rota::sim;  // NOLINT

namespace {

constexpr int kVersion = 13000;
constexpr int kCapability = 90;
const std::string kHeader = ".version 8.0\n.target sm_90\n.address_size 64\n";

CUresult read(const std::string& text, std::shared_ptr<const Image>* image) {
  return read_image(text.c_str(), Kernels(), kVersion, kCapability, image);
}

std::shared_ptr<const Image> image_of(const std::string& text) {
  std::shared_ptr<const Image> image;
  REQUIRE(read(kHeader + text, &image) == CUDA_SUCCESS);
  return image;
}

CUresult failure_of(const std::string& text) {
  std::shared_ptr<const Image> image;
  return read(text, &image);
}

DeviceUuid uuid(unsigned char first, unsigned char second) {
  DeviceUuid id{};
  id[0] = first;
  id[1] = second;
  return id;
}

}  // namespace

TEST_CASE("PTX says the sizes, the kinds and the initial values of its variables") {
  auto image = image_of(
      ".visible .global .align 4 .u32 one = 5;\n"
      ".global .align 1 .b8 text[16] = {104, 105};\n"
      ".const .align 8 .f64 half = 0d3FE0000000000000;\n"
      ".global .align 16 .v4 .f32 lanes[2];\n"
      ".visible .global .attribute(.managed) .align 8 .s64 minus = -2;\n"
      ".global .s16 a, b = 3;\n");
  const auto& variables = image->variables;
  REQUIRE(variables.size() == 7);
  CHECK(variables.at("one").initial == std::vector<unsigned char>{5, 0, 0, 0});
  CHECK(variables.at("text").bytes == 16);
  CHECK(variables.at("text").initial == std::vector<unsigned char>{104, 105});
  CHECK(variables.at("half").kind == ROTA_SIM_CONSTANT_VARIABLE);
  CHECK(variables.at("half").initial == std::vector<unsigned char>{0, 0, 0, 0, 0, 0, 0xe0, 0x3f});
  CHECK(variables.at("lanes").bytes == 32);
  CHECK(variables.at("minus").kind == ROTA_SIM_MANAGED_VARIABLE);
  CHECK(variables.at("minus").initial == std::vector<unsigned char>{0xfe, 255, 255, 255, 255, 255, 255, 255});
  CHECK(variables.at("a").bytes == 2);
  CHECK(variables.at("b").initial == std::vector<unsigned char>{3, 0});
}

TEST_CASE("an array without a size is as long as its initial value") {
  CHECK(image_of(".global .u16 values[] = {1, 2, 3};\n")->variables.at("values").bytes == 6);
}

TEST_CASE("comments and bodies of functions declare nothing") {
  auto image =
      image_of("// .global .u32 no;\n/* .global .u32 neither; */\n.func f(.param .u32 p)\n{ .global .u32 x; }\n");
  CHECK(image->variables.empty());
}

TEST_CASE("what is no PTX module, or not for this driver or device, has its own error each") {
  CHECK(failure_of("hello") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(failure_of("") == CUDA_ERROR_INVALID_IMAGE);
  CHECK(failure_of("x .version 8.0") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(".version 8.0\n") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(".version 9.9\n.target sm_90\n") == CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  CHECK(failure_of(".version 8.0\n.target sm_100\n") == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(failure_of(kHeader + ".entry f()\n{") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(kHeader + ".entry f()\n}") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(kHeader + ".global .u32 x") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(kHeader + ".global .u32 x[0];") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(kHeader + ".global .b8 x[99999999999999999];") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(kHeader + ".global .b8 x[4294967296][4294967296];") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(kHeader + ".global .u32 x[1] = {1, 2};") == CUDA_ERROR_INVALID_PTX);
  CHECK(failure_of(kHeader + ".global .attribute(.managed") == CUDA_ERROR_INVALID_PTX);
}

TEST_CASE("the list of visible devices ends at the first that there is not, and one named twice leaves none") {
  std::vector<DeviceUuid> three = {uuid(0xab, 0x01), uuid(0xab, 0x02), uuid(0xcd, 0x03)};
  using List = std::vector<int>;
  CHECK(visible_devices("2,0", three) == List{2, 0});
  CHECK(visible_devices(" 1, 2", three) == List{1, 2});
  CHECK(visible_devices("0,7,1", three) == List{0});
  CHECK(visible_devices("-1,0", three).empty());
  CHECK(visible_devices("", three).empty());
  CHECK(visible_devices("1,0,1", three).empty());
  CHECK(visible_devices("GPU-cd", three) == List{2});
  CHECK(visible_devices("GPU-CD03,GPU-ab02", three) == List{2, 1});
  CHECK(visible_devices("MIG-ab01", three) == List{0});
  CHECK(visible_devices("GPU-ab", three).empty());  // could be either
  CHECK(visible_devices("0,GPU-ee", three) == List{0});
}
