// Kernels over the rows of a step that are bound by memory: embeddings, norms, rotations, what is written to the
// caches, hyper-connections, compressors, the pointwise operators of the vision tower. Each launcher is one operator of
// ops/ops.h, which says what it computes. Activations have the dtype of the tensors given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/carver.h"
#include "ops/ops.h"
#include "platforms/gpu/backend.h"

namespace hadal::gpu::HADAL_GPU_NS {

// Scratch of these kernels.
struct RowsScratch {
  void Carve(const ops::WorkspaceSpec& spec, ops::Numerics numerics, Carver& carver);

  float* hc_partial = nullptr;  // [rows, chunks of hc*d, outputs + 1]: sums of HcPre and HcHead
};

// norms.cu
void LaunchRmsNorm(Stream stream, const ops::Tensor& x, const ops::Vector& weight, float eps, const ops::Tensor& out);
void LaunchAddRmsNorm(Stream stream, const ops::AddRmsNormArgs& args);
void LaunchMtpNorm(Stream stream, const ops::MtpNormArgs& args);
void LaunchRopeAngles(Stream stream, const ops::BatchRows& batch, std::span<const float> freqs, float* cos, float* sin);
void LaunchQNormRope(Stream stream, const ops::QNormRopeArgs& args);
void LaunchRopeTail(Stream stream, const ops::RopeTailArgs& args);

// caches.cu; `published`: whether plain pools and queries take the rounding of packed rows
void LaunchKvNormRopeStore(Stream stream, const ops::KvNormRopeStoreArgs& args, bool published);
void LaunchIndexerQuery(Stream stream, const ops::IndexerQueryArgs& args, bool published);
void LaunchIndexerKeyStore(Stream stream, const ops::IndexerKeyStoreArgs& args, bool published);

// compressor.cu
inline constexpr size_t kCompressFreqs = 64;  // most frequencies: they travel with the launch
inline constexpr int64_t kMostCompressWidth = 4096;
void LaunchCompress(Stream stream, const ops::CompressArgs& args, bool published);

// hyper_connections.cu; `multiprocessors` decides how rows are dealt to blocks, and no bit of the results
void LaunchHcPre(Stream stream, const ops::HcPreArgs& args, const RowsScratch& scratch, int multiprocessors);
void LaunchHcPost(Stream stream, const ops::HcPostArgs& args);
void LaunchHcHead(Stream stream, const ops::HcHeadArgs& args, const RowsScratch& scratch, int multiprocessors);

// pointwise.cu
void LaunchEmbed(Stream stream, const ops::BatchRows& batch, const ops::LinearWeight& table, int64_t hc,
                 const ops::Tensor& streams);
void LaunchMtpCombine(Stream stream, const ops::MtpCombineArgs& args);
void LaunchGatherRows(Stream stream, const ops::Tensor& from, std::span<const int32_t> rows, const ops::Tensor& out);
void LaunchPlaceEmbeddings(Stream stream, std::span<const void* const> rows, int64_t hc, const ops::Tensor& streams);
void LaunchNormalisePixels(Stream stream, const uint8_t* pixels, const ops::Tensor& out);
void LaunchAdd(Stream stream, const ops::Tensor& x, const ops::Tensor& y);
void LaunchSiluMul(Stream stream, const ops::Tensor& gate_up, const ops::Tensor& out);
void LaunchGelu(Stream stream, const ops::Tensor& x);
void LaunchUnfoldGrid(Stream stream, const ops::Tensor& x, int64_t rows, int64_t cols, int64_t edge,
                      const ops::Tensor& out);

}  // namespace hadal::gpu::HADAL_GPU_NS
