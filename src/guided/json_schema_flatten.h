// JSON Schemas without references: what $ref and allOf say, merged into one schema.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "guided/budget.h"
#include "guided/json_syntax.h"

namespace hadal::guided {

// All schemas of one text, `root`, which must outlive this.
class SchemaFlattener {
 public:
  SchemaFlattener(const Json& root, Budget* budget) : root_(root), budget_(budget) {}

  // The schema without $ref, allOf and annotations; anyOf, oneOf and pattern stand under the keys of
  // json_schema_merge.h. Its parts are as they were. `path` is for messages.
  absl::StatusOr<Json> Flatten(const Json& schema, const std::string& path) { return Flatten(schema, path, {}); }
  // The schema that a $ref at `path` refers to.
  absl::StatusOr<const Json*> Lookup(const std::string& ref, const std::string& path) const;
  // Merging writes schemas out. Counts one more, and `bytes`; fails if it has no end.
  absl::Status CheckGrowth(size_t bytes, const std::string& path);

 private:
  using Refs = std::vector<std::string>;  // that led here

  absl::StatusOr<Json> Flatten(const Json& schema, const std::string& path, const Refs& refs);
  absl::StatusOr<Json> FlattenRef(const std::string& ref, const std::string& path, const Refs& refs);

  const Json& root_;
  Budget* budget_;
  size_t schemas_ = 0, schema_bytes_ = 0;
};

}  // namespace hadal::guided
