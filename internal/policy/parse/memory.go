package parse

import (
	"slices"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// memoryModelField is `model:` of a group.
func memoryModelField() yamlform.FormKey[policy.Group] {
	o := yamlform.Form[policy.MemoryModel]{Name: "a model",
		Elsewhere: map[string]string{"max": "it belongs to the group's memory",
			"innodb_buffer_pool_size": "write buffer_pool"}}
	for _, in := range policy.ModelInputs {
		o.Keys = append(o.Keys, modelKey(in))
	}
	o.Keys = append(o.Keys, yamlform.FormKey[policy.MemoryModel]{
		Name:   "huge",
		Doc:    "The buffer pool, shared_buffers, SGA or cache lies in huge pages, which memory.max does not count.",
		Schema: policy.JSONSchema{"type": "boolean"},
		Read:   func(v yamlform.Item, m *policy.MemoryModel) { m.Huge, _ = v.Flag() },
	})
	return yamlform.FormKey[policy.Group]{
		Name:   "model",
		Doc:    "What one instance's own configuration lets it take of memory; check holds memory.max against it.",
		Schema: o.Schema(),
		Read: func(v yamlform.Item, g *policy.Group) {
			m := &policy.MemoryModel{Pos: v.Pos()}
			if o.Read(v, "model.", m) && readCheckModel(v, m) {
				g.Model = m
			}
		},
	}
}

// modelKey is how an input is written.
func modelKey(in policy.ModelInput) yamlform.FormKey[policy.MemoryModel] {
	size := &policy.Limit{Key: policy.Key("model." + in.Name), Unit: policy.SizeUnit(false), Zero: true}
	shape := size.Schema()
	most := int64(1000000)
	if in.Share {
		most = 100
	}
	if in.Count {
		shape = policy.JSONSchema{"type": "integer", "minimum": 0, "maximum": most}
	}
	return yamlform.FormKey[policy.MemoryModel]{
		Name: in.Name, Doc: in.Doc, Schema: shape,
		Read: func(v yamlform.Item, m *policy.MemoryModel) {
			at := policy.ModelValue{Name: in.Name, Pos: v.Pos()}
			if in.Count {
				n, ok := v.Number("a number", 0, most)
				if !ok {
					return
				}
				at.Value = n
			} else {
				s, ok := v.Limit(size)
				if !ok {
					return
				}
				at.Value = int64(s.Value.(policy.Bytes))
			}
			m.Values = append(m.Values, at)
		},
	}
}

// checkModel sees that the inputs belong together.
func readCheckModel(v yamlform.Item, m *policy.MemoryModel) bool {
	before := v.Problems()
	slices.SortStableFunc(m.Values,
		func(a, b policy.ModelValue) int { return policy.InputRank(a.Name) - policy.InputRank(b.Name) })
	large := m.Large()
	if large == nil {
		var names []string
		for _, in := range policy.ModelInputs {
			if in.Large {
				names = append(names, in.Name)
			}
		}
		v.Fail("write one of "+yamlform.JoinWords(names), "model: it does not say how large the engine's own cache is")
		return false
	}
	for _, at := range m.Values {
		in := policy.ModelInputs[policy.InputRank(at.Name)]
		if in.Engine != "" && in.Engine != large.Engine {
			v.FailAt(at.Pos, "one model is for one instance", "model.%s is of %s, and %s of %s", in.Name, in.Engine,
				large.Name, large.Engine)
		}
	}
	_, connections := m.Get("connections")
	_, each := m.Get("per_connection")
	if large.Engine == "mysql" && connections != each {
		v.Fail("write both: `connections: 200, per_connection: 3MiB`",
			"model: connections and per_connection of a MySQL belong together")
	}
	return v.Problems() == before
}
