#include "runtime/sampler.h"

#include "bind/bindings.h"
#include "runtime/error.h"

namespace octavo {
namespace {

using LogitsArray = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using SeedArray = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int32Out = nb::ndarray<std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Int32MatrixOut = nb::ndarray<std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatMatrixOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

LogitsView view(const LogitsArray& a) {
  const LogitsView v{a.data(), static_cast<std::int64_t>(a.shape(0)),
                     static_cast<std::int64_t>(a.shape(1)), a.stride(0)};
  require(v.vocab > 0 && v.vocab < (1 << 30), "logits need at least one column");
  require(v.vocab == 1 || a.stride(1) == 1, "logits must have contiguous rows");
  return v;
}

void check_ids(const Int32Array& rows, const Int32Array& token_ids, const LogitsView& v) {
  require(rows.size() == token_ids.size(), "rows and token_ids must have the same size");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    require(rows.data()[i] >= 0 && rows.data()[i] < v.rows, "a row is outside of the logits");
    require(token_ids.data()[i] >= 0 && token_ids.data()[i] < v.vocab,
            "a token id is outside of the vocabulary");
  }
}

void mask(Device&, const LogitsArray& logits, const Int32Array& rows, const Int32Array& token_ids) {
  const LogitsView v = view(logits);
  check_ids(rows, token_ids, v);
  const nb::gil_scoped_release release;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    v.data[rows.data()[i] * v.ld + token_ids.data()[i]] = -__builtin_inff();
  }
}

void sample(Device& self, const LogitsArray& logits, const FloatArray& temperature,
            const Int32Array& top_k, const FloatArray& top_p, const FloatArray& min_p,
            const SeedArray& seed, const Int32Array& sample_index, const Int32Array& position,
            const Int32Out& out) {
  const LogitsView v = view(logits);
  for (const std::size_t n : {temperature.size(), top_k.size(), top_p.size(), min_p.size(),
                              seed.size(), sample_index.size(), position.size(), out.size()}) {
    require(static_cast<std::int64_t>(n) == v.rows, "sampling columns must have one entry per row");
  }
  const SamplingRows rows{temperature.data(), top_k.data(),        top_p.data(),   min_p.data(),
                          seed.data(),        sample_index.data(), position.data()};
  const nb::gil_scoped_release release;
  self.sampler->sample(v, rows, out.data());
}

void logprobs(Device& self, const LogitsArray& logits, const Int32Array& rows,
              const Int32Array& token_ids, const Int32MatrixOut& ids, const FloatMatrixOut& values,
              const Int32Out& ranks) {
  const LogitsView v = view(logits);
  check_ids(rows, token_ids, v);
  const std::int64_t n = static_cast<std::int64_t>(rows.size());
  const std::int64_t k = static_cast<std::int64_t>(ids.shape(1)) - 1;
  require(k >= 0 && k <= v.vocab, "k must be in 0…vocab");
  require(static_cast<std::int64_t>(ids.shape(0)) == n &&
              static_cast<std::int64_t>(values.shape(0)) == n &&
              static_cast<std::int64_t>(values.shape(1)) == k + 1 &&
              static_cast<std::int64_t>(ranks.size()) == n,
          "logprob results have the wrong shape");
  const nb::gil_scoped_release release;
  self.sampler->logprobs(v, rows.data(), token_ids.data(), n, k, ids.data(), values.data(),
                         ranks.data());
}

}  // namespace

void bind_sampler(nb::class_<Device>& device) {
  device.def("mask", mask, nb::arg("logits").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("token_ids").noconvert());
  device.def("sample", sample, nb::arg("logits").noconvert(), nb::arg("temperature").noconvert(),
             nb::arg("top_k").noconvert(), nb::arg("top_p").noconvert(),
             nb::arg("min_p").noconvert(), nb::arg("seed").noconvert(),
             nb::arg("sample_index").noconvert(), nb::arg("position").noconvert(),
             nb::arg("out").noconvert());
  device.def("logprobs", logprobs, nb::arg("logits").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("token_ids").noconvert(), nb::arg("ids").noconvert(),
             nb::arg("values").noconvert(), nb::arg("ranks").noconvert());
}

}  // namespace octavo
