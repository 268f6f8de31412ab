// Packed rows: where their bytes lie, which bytes they are (spec deepseek-v4-vision-and-cache 6.2, 6.3; rows 23 to 25
// of section 8), and that every instruction set has the codes and values of the scalar encoding.
#include "ops/row_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "base/float_formats.h"
#include "ops/reference/rows.h"
#include "platforms/cpu/row_kernels.h"
#include "support/ops_data.h"

namespace hadal {
namespace {

using ops::RowFormat;
using test::Random;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// One page in a buffer, filled with ones so that untouched bytes show.
struct Page {
  Page(RowFormat format, int64_t cols, int64_t tail, int32_t rows)
      : bytes(static_cast<size_t>(ops::PageBytes(format, DType::kBF16, cols, tail, rows)), 0xFF) {
    pool.data = bytes.data();
    pool.cols = cols;
    pool.map = {&block, 1, rows, 0};
    pool.format = format;
    pool.tail = tail;
    pool.block_stride = static_cast<int64_t>(bytes.size());
  }
  void Encode(int64_t row, const std::vector<float>& values) { ops::EncodeRow(pool, 0, row, values.data()); }
  std::vector<float> Decode(int64_t row) const {
    std::vector<float> values(static_cast<size_t>(pool.cols));
    ops::DecodeRow(pool, 0, row, values.data());
    return values;
  }

  const int32_t block = 0;
  std::vector<uint8_t> bytes;
  ops::PagedRows pool;
};

std::vector<uint16_t> Bf16Bits(const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  bits.reserve(values.size());
  for (float v : values) bits.push_back(ToBFloat16(v).bits);
  return bits;
}

TEST(RowFormat, PagesHaveTheirPublishedSizes) {
  EXPECT_EQ(ops::PageBytes(RowFormat::kFp8DsMla, DType::kBF16, 512, 64, 64), 37'376);
  EXPECT_EQ(ops::PageBytes(RowFormat::kFp8DsMla, DType::kBF16, 512, 64, 2), 1'168);
  EXPECT_EQ(ops::PageBytes(RowFormat::kMxfp4, DType::kBF16, 128, 0, 64), 4'352);
  EXPECT_EQ(ops::PageBytes(RowFormat::kPlain, DType::kBF16, 512, 0, 64), 65'536);
  EXPECT_EQ(ops::PageBytes(RowFormat::kPlain, DType::kF32, 2048, 0, 4), 32'768);
  EXPECT_EQ(ops::PageBytes(RowFormat::kFp8DsMla, DType::kBF16, 640, 64, 1), 576 + 128 + 16) << "nine scales take 16";
  EXPECT_EQ(ops::PageBytes(RowFormat::kFp8DsMla, DType::kBF16, 128, 32, 1), 96 + 64 + 8) << "a part of a group";
}

// 6.2: row i's E4M3 bytes at 576i, its bf16 tail behind them, its scales at 576n + 8i, the eighth of them 0.
TEST(RowFormat, Fp8RowsLieAsPublished) {
  for (const int32_t n : {2, 64}) {
    Page page(RowFormat::kFp8DsMla, 512, 64, n);
    std::vector<uint8_t> expected(page.bytes.size(), 0xFF);
    for (const int64_t i : {int64_t{0}, int64_t{1}, int64_t{n - 1}}) {
      std::vector<float> row(512);
      for (int64_t g = 0; g < 7; ++g) {
        const auto exponent = static_cast<int>(g - 3 + i);
        const float unit = std::exp2(static_cast<float>(exponent));
        const std::pair<float, uint8_t> codes[] = {{448, 0x7E}, {1, 0x38},     {-2, 0xC0},   {0x1p-9f, 0x01},
                                                   {0, 0x00},   {-0.0f, 0x80}, {-416, 0xFD}, {0x7p-9f, 0x07}};
        for (int64_t c = 0; c < 64; ++c) {
          row[g * 64 + c] = codes[c % 8].first * unit;
          expected[i * 576 + g * 64 + c] = codes[c % 8].second;
        }
        expected[n * 576 + i * 8 + g] = static_cast<uint8_t>(127 + exponent);
      }
      expected[n * 576 + i * 8 + 7] = 0;
      for (int64_t c = 0; c < 64; ++c) {
        row[448 + c] = c % 2 == 0 ? 1.0f : -3.0f;  // 0x3F80 and 0xC040, low byte first
        expected[i * 576 + 448 + 2 * c] = c % 2 == 0 ? 0x80 : 0x40;
        expected[i * 576 + 448 + 2 * c + 1] = c % 2 == 0 ? 0x3F : 0xC0;
      }
      page.Encode(i, row);
      EXPECT_EQ(Bf16Bits(page.Decode(i)), Bf16Bits(row));
    }
    EXPECT_EQ(page.bytes, expected);
  }
}

// 6.3: two values a byte, the even one in the low nibble; row i's scales at 64n + 4i.
TEST(RowFormat, Fp4RowsLieAsPublished) {
  constexpr int32_t kRows = 64;
  Page page(RowFormat::kMxfp4, 128, 0, kRows);
  std::vector<uint8_t> expected(page.bytes.size(), 0xFF);
  for (const int64_t i : {0, 1, 63}) {
    std::vector<float> row(128);
    for (int64_t g = 0; g < 4; ++g) {
      const auto exponent = static_cast<int>(g - 2 + i);
      const float unit = std::exp2(static_cast<float>(exponent));
      constexpr float kValues[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
      for (int64_t c = 0; c < 32; ++c) row[g * 32 + c] = kValues[c % 16] * unit;
      for (int64_t c = 0; c < 16; ++c) {
        const auto even = static_cast<uint8_t>(2 * c % 16);
        expected[i * 64 + g * 16 + c] = static_cast<uint8_t>(even | (even + 1) << 4);
      }
      expected[kRows * 64 + i * 4 + g] = static_cast<uint8_t>(127 + exponent);
    }
    page.Encode(i, row);
    EXPECT_EQ(Bf16Bits(page.Decode(i)), Bf16Bits(row));
  }
  EXPECT_EQ(page.bytes, expected);
}

// Row 25: the scale is exact where the quotient is a power of two.
TEST(RowFormat, Fp8ScalesOfTheTable) {
  const std::pair<float, int> cases[] = {
      {448.0f, 127}, {448.5f, 128},     {-448.5f, 128},      {0.0f, 105},   {1e-4f, 105},
      {1e-30f, 105}, {224.0f, 126},     {225.0f, 127},       {896.0f, 128}, {std::nextafter(448.0f, 449.0f), 128},
      {1.75f, 119},  {1.7578125f, 120}, {3.3895314e38f, 247}};
  for (const auto& [amax, byte] : cases) {
    Page page(RowFormat::kFp8DsMla, 64, 0, 1);
    std::vector<float> row(64, 0.0f);
    row[17] = amax;
    page.Encode(0, row);
    EXPECT_EQ(page.bytes[64], byte) << amax;
  }
}

TEST(RowFormat, Fp4ScalesOfTheTable) {
  const std::pair<float, int> cases[] = {{6.0f, 127}, {6.5f, 128},        {-3.0f, 126}, {3.5f, 127}, {0.0f, 1},
                                         {1e-40f, 1}, {6 * 0x1p-126f, 1}, {12.0f, 128}, {kNaN, 255}};
  for (const auto& [amax, byte] : cases) {
    Page page(RowFormat::kMxfp4, 32, 0, 1);
    std::vector<float> row(32, 0.0f);
    row[31] = amax;
    page.Encode(0, row);
    EXPECT_EQ(page.bytes[16], byte) << amax;
  }
}

// The simulation of spec deepseek-v4-text 3.1 and 3.6 takes its scale from a product with 1/448 and 1/6. For every bf16
// number that gives the same scale as exact logic on exponents.
TEST(RowFormat, SimulationHasTheSameScaleForEveryBf16Number) {
  Page fp8(RowFormat::kFp8DsMla, 16, 0, 1), fp4(RowFormat::kMxfp4, 32, 0, 1);
  std::vector<float> row(32, 0.0f);
  for (uint32_t bits = 0; bits < 0x7F80; ++bits) {
    const float amax = ToFloat(BFloat16{static_cast<uint16_t>(bits)});
    row[3] = amax;
    fp8.Encode(0, row);
    fp4.Encode(0, row);
    ASSERT_EQ(fp8.bytes[16], std::bit_cast<uint32_t>(E4M3BlockScale(amax)) >> 23) << amax;
    ASSERT_EQ(fp4.bytes[16], std::bit_cast<uint32_t>(E2M1BlockScale(amax)) >> 23) << amax;
  }
}

// Rows of many magnitudes; some groups all zero, some with zeros of both signs and numbers that round to them.
std::vector<float> DifficultRow(Random* random, int64_t cols, int64_t group) {
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t begin = 0; begin < cols; begin += group) {
    const auto kind = random->Index(6);
    // Up to what bf16 holds, so that subnormal numbers appear too.
    const int64_t exponent = kind == 0 ? random->Index(240) - 130 : random->Index(20) - 10;
    for (int64_t i = begin; i < std::min(cols, begin + group); ++i) {
      float v = std::ldexp(random->Normal(), static_cast<int>(exponent));
      if (kind == 1) v = 0.0f;
      if (kind == 2) v = random->Index(2) == 0 ? -0.0f : 0.0f;
      if (kind == 3 && random->Index(2) == 0) v *= 0x1p-12f;
      if (kind == 4 && random->Index(3) == 0) v *= 0x1p-20f;
      row[i] = RoundBF16(v);
    }
  }
  return row;
}

TEST(RowFormat, ReadingGivesWhatTheSimulationLeaves) {
  Random random(111);
  Page fp8(RowFormat::kFp8DsMla, 512, 64, 2), fp4(RowFormat::kMxfp4, 128, 0, 2);
  for (int i = 0; i < 400; ++i) {
    const std::vector<float> kv = DifficultRow(&random, 512, 64), key = DifficultRow(&random, 128, 32);
    std::vector<float> kv_plain = kv, key_plain = key;
    ops::reference::SimulateFp8(kv_plain.data(), 448, 64);
    ops::reference::SimulateFp4(key_plain.data(), 128, 32);
    fp8.Encode(0, kv);
    fp4.Encode(0, key);
    ASSERT_EQ(Bf16Bits(fp8.Decode(0)), Bf16Bits(kv_plain));
    ASSERT_EQ(Bf16Bits(fp4.Decode(0)), Bf16Bits(key_plain));
    // And what was simulated already is kept, though its largest number may now ask for a smaller scale.
    fp8.Encode(1, kv_plain);
    fp4.Encode(1, key_plain);
    ASSERT_EQ(Bf16Bits(fp8.Decode(1)), Bf16Bits(kv_plain));
    ASSERT_EQ(Bf16Bits(fp4.Decode(1)), Bf16Bits(key_plain));
  }
}

// Row 23: several pools share one slab; what one writes is in its own pages.
TEST(RowFormat, InterleavedPoolsKeepToTheirPages) {
  Random random(112);
  constexpr int64_t kBlocks = 3;
  // C4 rows, indexer keys and C128 rows, each page with padding behind it.
  const std::tuple<RowFormat, int64_t, int64_t, int32_t, int64_t> members[] = {
      {RowFormat::kFp8DsMla, 512, 64, 64, 37'440},
      {RowFormat::kMxfp4, 128, 0, 64, 4'608},
      {RowFormat::kFp8DsMla, 512, 64, 2, 1'728}};
  constexpr int64_t kSlab = 37'440 + 4'608 + 1'728;
  const std::vector<int32_t> blocks = {2, 0, 1};
  std::vector<uint8_t> memory(kBlocks * kSlab, 0xA5), before;
  int64_t offset = 0;
  for (const auto& [format, cols, tail, rows, stride] : members) {
    ops::PagedRows pool;
    pool.data = memory.data() + offset;
    pool.cols = cols;
    pool.map = {blocks.data(), kBlocks, rows, 0};
    pool.format = format;
    pool.tail = tail;
    pool.block_stride = kSlab;
    before = memory;
    for (int64_t p = 0; p < kBlocks * rows; ++p) ops::EncodeRow(pool, 0, p, DifficultRow(&random, cols, 32).data());
    const int64_t payload = ops::PageBytes(format, DType::kBF16, cols, tail, rows);
    for (int64_t i = 0; i < std::ssize(memory); ++i) {
      const int64_t in_slab = i % kSlab;
      const bool outside = in_slab < offset || in_slab >= offset + payload;
      ASSERT_TRUE(!outside || memory[i] == before[i]) << in_slab;
    }
    offset += stride;
  }
}

class RowCodecTest : public testing::TestWithParam<cpu::Isa> {
 protected:
  static const cpu::RowKernels& Kernels() { return cpu::RowKernelsFor(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, RowCodecTest, testing::Values(cpu::Isa::kBaseline, cpu::Isa::kAvx2, cpu::Isa::kAvx512),
                         [](const auto& test) {
                           return test.param == cpu::Isa::kBaseline ? "baseline"
                                  : test.param == cpu::Isa::kAvx2   ? "avx2"
                                                                    : "avx512";
                         });

TEST_P(RowCodecTest, EncodesTheBytesOfTheScalarCode) {
  Random random(113);
  for (int64_t n : {16, 64, 96, 448}) {
    Page page(RowFormat::kFp8DsMla, n, 0, 1);
    for (int i = 0; i < 100; ++i) {
      const std::vector<float> row = DifficultRow(&random, n, 64);
      page.Encode(0, row);
      std::vector<uint8_t> bytes(page.bytes.size(), 0);
      auto* out = reinterpret_cast<std::byte*>(bytes.data());
      Kernels().encode_e4m3(row.data(), n, out, out + n);
      ASSERT_EQ(bytes, page.bytes) << n;
    }
  }
  for (int64_t n : {32, 128}) {
    Page page(RowFormat::kMxfp4, n, 0, 1);
    for (int i = 0; i < 100; ++i) {
      const std::vector<float> row = DifficultRow(&random, n, 32);
      page.Encode(0, row);
      std::vector<uint8_t> bytes(page.bytes.size(), 0);
      auto* out = reinterpret_cast<std::byte*>(bytes.data());
      Kernels().encode_e2m1(row.data(), n, out, out + n / 2);
      ASSERT_EQ(bytes, page.bytes) << n;
    }
  }
}

void ExpectSameBits(float expected, float actual) {
  if (std::isnan(expected)) {
    ASSERT_TRUE(std::isnan(actual));
  } else {
    ASSERT_EQ(std::bit_cast<uint32_t>(expected), std::bit_cast<uint32_t>(actual));
  }
}

// Every code under every scale, alone among ordinary codes and with all others.
TEST_P(RowCodecTest, DecodesEveryCodeUnderEveryScale) {
  std::vector<uint8_t> codes(256), scales(4), fp4(16);
  for (int scale = 0; scale < 256; ++scale) {
    std::fill(scales.begin(), scales.end(), static_cast<uint8_t>(scale));
    std::iota(codes.begin(), codes.end(), static_cast<uint8_t>(0));
    const auto* scale_bytes = reinterpret_cast<const std::byte*>(scales.data());
    std::vector<uint16_t> out(256);
    Kernels().decode_e4m3(reinterpret_cast<const std::byte*>(codes.data()), scale_bytes, 256, out.data());
    for (int c = 0; c < 256; ++c) {
      const float expected = RoundBF16(E4M3ToFloat(codes[c]) * E8M0ToFloat(scales[0]));
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(expected, ToFloat(BFloat16{out[c]}))) << scale << " " << c;
    }
    std::iota(fp4.begin(), fp4.end(), static_cast<uint8_t>(scale));
    std::vector<float> values(32);
    Kernels().decode_e2m1(reinterpret_cast<const std::byte*>(fp4.data()), scale_bytes, 32, values.data());
    for (int c = 0; c < 32; ++c) {
      const auto code = static_cast<uint8_t>(fp4[c / 2] >> (c % 2 * 4) & 15);
      ASSERT_NO_FATAL_FAILURE(ExpectSameBits(E2M1ToFloat(code) * E8M0ToFloat(scales[0]), values[c])) << scale;
    }
  }
  std::fill(scales.begin(), scales.end(), static_cast<uint8_t>(130));
  for (int code = 0; code < 256; ++code) {
    for (int at : {0, 31, 32, 63}) {
      std::vector<uint8_t> group(64, 0x40);
      group[at] = static_cast<uint8_t>(code);
      std::vector<uint16_t> out(64);
      Kernels().decode_e4m3(reinterpret_cast<const std::byte*>(group.data()),
                            reinterpret_cast<const std::byte*>(scales.data()), 64, out.data());
      for (int c = 0; c < 64; ++c) {
        ASSERT_NO_FATAL_FAILURE(ExpectSameBits(E4M3ToFloat(group[c]) * 8, ToFloat(BFloat16{out[c]}))) << code;
      }
    }
  }
}

}  // namespace
}  // namespace hadal
