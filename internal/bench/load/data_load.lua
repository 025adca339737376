-- A data load: each thread fills a table of its own with rows of 1 KiB, --table-size of them in each INSERT. A transaction
-- is such an INSERT. What an earlier run loaded is dropped at the start.
sysbench.cmdline.options = {
   tables = {"not used", 1},
   table_size = {"rows of an INSERT", 100},
}

function thread_init()
   con = sysbench.sql.driver():connect()
   local name = "loaded" .. sysbench.tid
   con:query("DROP TABLE IF EXISTS " .. name)
   con:query("CREATE TABLE " .. name .. " (id INTEGER NOT NULL AUTO_INCREMENT PRIMARY KEY, c VARCHAR(1024) NOT NULL)")
   local rows = {}
   for i = 1, sysbench.opt.table_size do
      rows[i] = "('" .. string.rep("x", 1000) .. "')"
   end
   statement = "INSERT INTO " .. name .. " (c) VALUES " .. table.concat(rows, ",")
end

function event()
   con:query(statement)
end

function thread_done()
   con:disconnect()
end
