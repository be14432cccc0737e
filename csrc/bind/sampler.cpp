#include "runtime/sampler.h"

#include "bind/bindings.h"
#include "runtime/error.h"
#include "runtime/logit_ops.h"

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

std::int64_t size(const Int32Array& a) { return static_cast<std::int64_t>(a.size()); }

void check_rows(const Int32Array& rows, const LogitsView& v) {
  for (std::int64_t i = 0; i < size(rows); ++i) {
    require(rows.data()[i] >= 0 && rows.data()[i] < v.rows, "a row is outside of the logits");
  }
}

// Threads that edit different rows must not meet.
void check_rising(const Int32Array& rows, const LogitsView& v) {
  check_rows(rows, v);
  for (std::int64_t i = 1; i < size(rows); ++i) {
    require(rows.data()[i] > rows.data()[i - 1], "rows must rise");
  }
}

void check_tokens(const Int32Array& token_ids, const LogitsView& v) {
  for (std::int64_t i = 0; i < size(token_ids); ++i) {
    require(token_ids.data()[i] >= 0 && token_ids.data()[i] < v.vocab,
            "a token id is outside of the vocabulary");
  }
}

void check_ids(const Int32Array& rows, const Int32Array& token_ids, const LogitsView& v) {
  require(rows.size() == token_ids.size(), "rows and token_ids must have the same size");
  check_rows(rows, v);
  check_tokens(token_ids, v);
}

void bound_mask(Device&, const LogitsArray& logits, const Int32Array& rows,
                const Int32Array& token_ids) {
  const LogitsView v = view(logits);
  check_ids(rows, token_ids, v);
  const nb::gil_scoped_release release;
  mask(v, rows.data(), token_ids.data(), size(rows));
}

void bound_add_bias(Device&, const LogitsArray& logits, const Int32Array& rows,
                    const Int32Array& token_ids, const FloatArray& bias) {
  const LogitsView v = view(logits);
  check_ids(rows, token_ids, v);
  require(bias.size() == rows.size(), "bias must have one entry per row");
  const nb::gil_scoped_release release;
  add_bias(v, rows.data(), token_ids.data(), bias.data(), size(rows));
}

void bound_allow(Device& self, const LogitsArray& logits, const Int32Array& rows,
                 const Int32Matrix& bitmask) {
  const LogitsView v = view(logits);
  check_rising(rows, v);
  require(bitmask.shape(0) == rows.size() &&
              static_cast<std::int64_t>(bitmask.shape(1)) == (v.vocab + 31) / 32,
          "a bitmask has one row per logits row and one bit per token");
  const nb::gil_scoped_release release;
  allow(*self.pool, *self.kernels, v, rows.data(), bitmask.data(), size(rows));
}

void bound_penalize(Device& self, const LogitsArray& logits, const Int32Array& rows,
                    const FloatArray& repetition, const FloatArray& frequency,
                    const FloatArray& presence, const Int32Array& starts,
                    const Int32Array& token_ids, const Int32Array& counts) {
  const LogitsView v = view(logits);
  check_rising(rows, v);
  check_tokens(token_ids, v);
  for (const std::size_t n : {repetition.size(), frequency.size(), presence.size()}) {
    require(n == rows.size(), "penalties must have one entry per row");
  }
  require(starts.size() == rows.size() + 1 && starts.data()[0] == 0 &&
              starts.data()[rows.size()] == size(token_ids) && counts.size() == token_ids.size(),
          "starts must go from 0 to the number of token ids");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    require(starts.data()[i] <= starts.data()[i + 1], "starts must not fall");
  }
  const PenaltyRows penalties{repetition.data(), frequency.data(), presence.data(),
                              starts.data(),     token_ids.data(), counts.data()};
  const nb::gil_scoped_release release;
  penalize(*self.pool, v, rows.data(), penalties, size(rows));
}

SamplingRows sampling_rows(std::int64_t n, const FloatArray& temperature, const Int32Array& top_k,
                           const FloatArray& top_p, const FloatArray& min_p, const SeedArray& seed,
                           const Int32Array& sample_index, const Int32Array& position) {
  for (const std::size_t m : {temperature.size(), top_k.size(), top_p.size(), min_p.size(),
                              seed.size(), sample_index.size(), position.size()}) {
    require(static_cast<std::int64_t>(m) == n, "sampling columns must have one entry per row");
  }
  return {temperature.data(), top_k.data(),        top_p.data(),   min_p.data(),
          seed.data(),        sample_index.data(), position.data()};
}

void process(Device& self, const LogitsArray& logits, const Int32Array& rows,
             const FloatArray& temperature, const Int32Array& top_k, const FloatArray& top_p,
             const FloatArray& min_p, const SeedArray& seed, const Int32Array& sample_index,
             const Int32Array& position) {
  const LogitsView v = view(logits);
  check_rising(rows, v);
  const SamplingRows sampling =
      sampling_rows(size(rows), temperature, top_k, top_p, min_p, seed, sample_index, position);
  const nb::gil_scoped_release release;
  self.sampler->process(v, rows.data(), sampling, size(rows));
}

void sample(Device& self, const LogitsArray& logits, const FloatArray& temperature,
            const Int32Array& top_k, const FloatArray& top_p, const FloatArray& min_p,
            const SeedArray& seed, const Int32Array& sample_index, const Int32Array& position,
            const Int32Out& out) {
  const LogitsView v = view(logits);
  const SamplingRows rows =
      sampling_rows(v.rows, temperature, top_k, top_p, min_p, seed, sample_index, position);
  require(static_cast<std::int64_t>(out.size()) == v.rows, "out must have one entry per row");
  const nb::gil_scoped_release release;
  self.sampler->sample(v, rows, out.data());
}

void logprobs(Device& self, const LogitsArray& logits, const Int32Array& rows,
              const Int32Array& token_ids, bool normalized, const Int32MatrixOut& ids,
              const FloatMatrixOut& values, const Int32Out& ranks) {
  const LogitsView v = view(logits);
  check_ids(rows, token_ids, v);
  const std::int64_t n = size(rows);
  const std::int64_t k = static_cast<std::int64_t>(ids.shape(1)) - 1;
  require(k >= 0 && k <= v.vocab, "k must be in 0…vocab");
  require(static_cast<std::int64_t>(ids.shape(0)) == n &&
              static_cast<std::int64_t>(values.shape(0)) == n &&
              static_cast<std::int64_t>(values.shape(1)) == k + 1 &&
              static_cast<std::int64_t>(ranks.size()) == n,
          "logprob results have the wrong shape");
  const nb::gil_scoped_release release;
  self.sampler->logprobs(v, rows.data(), token_ids.data(), n, k, normalized, ids.data(),
                         values.data(), ranks.data());
}

}  // namespace

void bind_sampler(nb::class_<Device>& device) {
  device.def("mask", bound_mask, nb::arg("logits").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("token_ids").noconvert());
  device.def("add_bias", bound_add_bias, nb::arg("logits").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("token_ids").noconvert(), nb::arg("bias").noconvert());
  device.def("allow", bound_allow, nb::arg("logits").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("bitmask").noconvert());
  device.def("penalize", bound_penalize, nb::arg("logits").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("repetition").noconvert(), nb::arg("frequency").noconvert(),
             nb::arg("presence").noconvert(), nb::arg("starts").noconvert(),
             nb::arg("token_ids").noconvert(), nb::arg("counts").noconvert());
  device.def("process", process, nb::arg("logits").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("temperature").noconvert(), nb::arg("top_k").noconvert(),
             nb::arg("top_p").noconvert(), nb::arg("min_p").noconvert(),
             nb::arg("seed").noconvert(), nb::arg("sample_index").noconvert(),
             nb::arg("position").noconvert());
  device.def("sample", sample, nb::arg("logits").noconvert(), nb::arg("temperature").noconvert(),
             nb::arg("top_k").noconvert(), nb::arg("top_p").noconvert(),
             nb::arg("min_p").noconvert(), nb::arg("seed").noconvert(),
             nb::arg("sample_index").noconvert(), nb::arg("position").noconvert(),
             nb::arg("out").noconvert());
  device.def("logprobs", logprobs, nb::arg("logits").noconvert(), nb::arg("rows").noconvert(),
             nb::arg("token_ids").noconvert(), nb::arg("normalized"), nb::arg("ids").noconvert(),
             nb::arg("values").noconvert(), nb::arg("ranks").noconvert());
}

}  // namespace octavo
