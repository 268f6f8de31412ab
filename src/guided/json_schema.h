// JSON Schema (draft 2020-12) to expressions: JSON texts that satisfy the schema, in the spelling of json_syntax.h.
//
// The result never takes a text that the schema refuses, with the exceptions marked (!). It may take fewer texts than
// the schema allows: a model that writes output needs one way to say a thing.
//
//   any        type (also a list), enum, const, anyOf, oneOf (! taken as anyOf), allOf, $ref, $defs, definitions,
//   nullable,
//              true, false. Keywords beside $ref, anyOf and oneOf hold as well. Without `type`, keywords that concern
//              one type imply it.
//   $ref       "#" and JSON pointers within the schema; recursion is fine.
//   object     properties, required, additionalProperties, propertyNames, minProperties, maxProperties (where no
//              properties are listed), patternProperties (one pattern). Members come in the order of `properties`, then
//              required ones that are not listed there, then others. Others are written only if additionalProperties
//              says so or if neither properties nor patternProperties is given. (!) Their names may repeat.
//   array      items, prefixItems, minItems, maxItems. Elements behind prefixItems are written only if `items` or
//              minItems says so.
//   string     minLength, maxLength (Unicode characters), pattern (regex.h, matches anywhere), format: date, date-time,
//              time, duration, email, hostname, ipv4, uri, uuid
//   number     minimum, maximum, exclusiveMinimum, exclusiveMaximum: exact to the digit; such numbers have no exponent
//
// Beside enum and const, of the keywords of objects and arrays none is supported.
//
// Annotations are ignored (title, description, default, examples, ...). Any other keyword, and a value of the wrong
// type, is InvalidArgument with the keyword and the place, e.g. "json schema: #/properties/a: keyword 'not' is not
// supported".
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "guided/budget.h"
#include "guided/expression.h"

namespace hadal::guided {

absl::StatusOr<Expr> ParseJsonSchema(std::string_view schema, Expressions* expressions, Budget* budget);

// How a call writes its arguments one by one: `begin`, the name in quotation marks, `as_text` and a string as it is or
// `as_json` and any other value as JSON, `end`; `none` where there are no arguments. A control token (vocabulary.h) in
// `end` is what tells it from a string, which may hold any text.
struct ParameterForm {
  Expr begin, as_text, as_json, end, none;
};

// The arguments of a call: objects that satisfy the schema, as `form` has them, or as JSON if it is null. Strings as
// they are satisfy minLength, pattern and the like unescaped. With a form, names hold no quotation mark
// (InvalidArgument), and those that are not listed have 1 to 64 characters, none a backslash or a control character.
// kNoText if there is no such object.
absl::StatusOr<Expr> ParseArgumentsSchema(std::string_view schema, const ParameterForm* form, Expressions* expressions,
                                          Budget* budget);

}  // namespace hadal::guided
