// Operators of the "orchid" domain with block-quantised weights: one product, one decoder layer.
#pragma once

#include <memory>

#include "ort/api.h"

namespace orchid {

// Owns the operators; they must outlive every session that uses them.
class BlockOps {
 public:
  BlockOps();
  ~BlockOps();
  BlockOps(const BlockOps&) = delete;
  BlockOps& operator=(const BlockOps&) = delete;

  void AddTo(Ort::CustomOpDomain& domain);

 private:
  struct Ops;
  std::unique_ptr<Ops> ops_;
};

}  // namespace orchid
