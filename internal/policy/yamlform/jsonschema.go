package yamlform

import "bulkhead/internal/policy"

// ListOf is the schema of a list.
func ListOf(items policy.JSONSchema) policy.JSONSchema {
	return policy.JSONSchema{"type": "array", "items": items}
}

// MapOf is the schema of a mapping whose keys match a pattern.
func MapOf(pattern string, values policy.JSONSchema) policy.JSONSchema {
	return policy.JSONSchema{"type": "object", "propertyNames": policy.JSONSchema{"pattern": pattern},
		"additionalProperties": values}
}
