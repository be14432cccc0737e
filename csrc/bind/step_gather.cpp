#include "runtime/step_gather.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "bind/bindings.h"
#include "runtime/error.h"

namespace octavo {
namespace {

template <class T, int Dims>
using Writable = nb::ndarray<T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;
using Int32s = Writable<std::int32_t, 1>;
using Int64s = Writable<std::int64_t, 1>;
using Int32Rows = Writable<std::int32_t, 2>;
using Ints = std::vector<std::int32_t>;

// Holds the arrays that StepGather reads and writes.
struct BoundGather {
  std::vector<Int32s> int32s;
  std::vector<Int64s> int64s;
  std::vector<Int32Rows> matrices;
  StepGather gather;
};

template <class Array>
void check_size(const Array& array, std::int64_t least) {
  require(static_cast<std::int64_t>(array.size()) >= least, "step gather: an array is too small");
}

void construct(BoundGather* self, const Int32Rows& token_ids, const Int32s& num_tokens,
               const Int32s& num_computed_tokens, const std::vector<Int32Rows>& block_tables,
               const std::vector<std::int64_t>& block_sizes, std::int64_t max_tokens,
               std::int64_t max_requests, const std::vector<Int32s>& of_tokens,
               const std::vector<Int32s>& of_requests, const Int64s& rows,
               const Int64s& logit_rows_of_state, const std::vector<Int32s>& tables,
               const std::vector<Int32s>& slots) {
  const std::int64_t num_rows = static_cast<std::int64_t>(token_ids.shape(0));
  const std::size_t num_groups = block_tables.size();
  require(of_tokens.size() == 5 && of_requests.size() == 2 && block_sizes.size() == num_groups &&
              tables.size() == num_groups && slots.size() == num_groups,
          "step gather: an array is missing");
  BatchArrays batch{num_rows,
                    static_cast<std::int64_t>(token_ids.shape(1)),
                    token_ids.data(),
                    num_tokens.data(),
                    num_computed_tokens.data(),
                    {}};
  check_size(num_tokens, num_rows);
  check_size(num_computed_tokens, num_rows);
  StepBuffers step{};
  step.max_tokens = max_tokens;
  step.max_requests = max_requests;
  for (const Int32s& array : of_tokens) check_size(array, max_tokens);
  step.token_ids = of_tokens[0].data();
  step.positions = of_tokens[1].data();
  step.logit_rows = of_tokens[2].data();
  step.logit_offsets = of_tokens[3].data();
  step.logit_positions = of_tokens[4].data();
  check_size(of_requests[0], max_requests + 1);
  check_size(of_requests[1], max_requests);
  step.query_start = of_requests[0].data();
  step.seq_lens = of_requests[1].data();
  check_size(rows, max_requests);
  check_size(logit_rows_of_state, max_tokens);
  step.rows = rows.data();
  step.logit_rows_of_state = logit_rows_of_state.data();
  for (std::size_t g = 0; g < num_groups; ++g) {
    const std::int64_t columns = static_cast<std::int64_t>(block_tables[g].shape(1));
    require(static_cast<std::int64_t>(block_tables[g].shape(0)) == num_rows && block_sizes[g] > 0,
            "step gather: a block table has a row per request");
    check_size(tables[g], max_requests * columns);
    check_size(slots[g], max_tokens);
    batch.tables.push_back({block_tables[g].data(), columns, block_sizes[g]});
    step.tables.push_back(tables[g].data());
    step.slots.push_back(slots[g].data());
  }
  std::vector<Int32s> held{num_tokens, num_computed_tokens};
  for (const auto* arrays : {&of_tokens, &of_requests, &tables, &slots}) {
    held.insert(held.end(), arrays->begin(), arrays->end());
  }
  std::vector<Int32Rows> matrices = block_tables;
  matrices.push_back(token_ids);
  new (self) BoundGather{std::move(held),
                         {rows, logit_rows_of_state},
                         std::move(matrices),
                         StepGather(std::move(batch), std::move(step))};
}

}  // namespace

void bind_step_gather(nb::module_& m) {
  nb::class_<BoundGather>(m, "StepGather", "Gathers a step's arrays from the persistent batch.")
      .def("__init__", construct, nb::arg("token_ids").noconvert(),
           nb::arg("num_tokens").noconvert(), nb::arg("num_computed_tokens").noconvert(),
           nb::arg("block_tables").noconvert(), nb::arg("block_sizes"), nb::arg("max_tokens"),
           nb::arg("max_requests"), nb::arg("of_tokens").noconvert(),
           nb::arg("of_requests").noconvert(), nb::arg("rows").noconvert(),
           nb::arg("logit_rows_of_state").noconvert(), nb::arg("tables").noconvert(),
           nb::arg("slots").noconvert())
      .def(
          "gather",
          [](BoundGather& self, const Ints& rows, const Ints& counts, const Ints& num_logits) {
            const StepGather::Sizes sizes = self.gather.gather(rows, counts, num_logits);
            return std::make_tuple(sizes.num_tokens, sizes.num_logit_rows, sizes.longest);
          },
          "Tokens, logits rows, and the longest of seq_lens.")
      .def("write_sampled",
           [](BoundGather& self, const Ints& token_ids) { self.gather.write_sampled(token_ids); });
}

}  // namespace octavo
